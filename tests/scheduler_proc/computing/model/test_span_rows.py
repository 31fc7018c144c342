"""The buffer of the rows of spans: what it keeps, drops and refuses, and whose embeddings it replaces."""

import pytest
import torch

from scheduler_proc.computing.model.span_rows import SpanRows

CPU = torch.device("cpu")


def rows_of(number: int, length: int) -> torch.Tensor:
    return torch.arange(length * 3.0).view(length, 3) + 100 * number


def make(num_rows: int = 10) -> SpanRows:
    return SpanRows((3, 3), torch.float32, CPU, num_rows)


def place(rows: SpanRows, number: int, length: int) -> bytes:
    digest = bytes([number]) * 16
    rows.place(digest, rows_of(number, length))
    return digest


def placed_at(rows: SpanRows, digest: bytes) -> torch.Tensor:
    places = torch.tensor(rows.find(digest), dtype=torch.int32)
    embedded = torch.full((len(places), 3), -1.0)
    rows.overwrite(embedded, places)
    return embedded


def test_tokens_get_their_rows_and_the_others_keep_their_embeddings():
    rows = make()
    first, second = place(rows, 1, 4), place(rows, 2, 3)
    places = [rows.find(first)[2], -1, rows.find(second)[0], -1, rows.find(first)[0]]
    embedded = torch.full((5, 3), -1.0)
    rows.overwrite(embedded, torch.tensor(places, dtype=torch.int32))
    expected = torch.full((5, 3), -1.0)
    expected[0], expected[2], expected[4] = rows_of(1, 4)[2], rows_of(2, 3)[0], rows_of(1, 4)[0]
    assert torch.equal(embedded, expected)


def test_rows_that_no_request_needs_make_room_the_oldest_first():
    rows = make()
    first, second, third = place(rows, 1, 3), place(rows, 2, 3), place(rows, 3, 3)
    place(rows, 1, 3)
    fourth = place(rows, 4, 2)
    assert not rows.find(second), "the first was placed again since"
    for number, digest, length in ((1, first, 3), (3, third, 3), (4, fourth, 2)):
        assert torch.equal(placed_at(rows, digest), rows_of(number, length))
    rows.find_needed = lambda: {first, fourth}
    fifth = place(rows, 5, 5)
    assert not rows.find(third)
    assert torch.equal(placed_at(rows, first), rows_of(1, 3))
    assert torch.equal(placed_at(rows, fifth), rows_of(5, 5))


def test_rows_without_room_or_of_another_size_are_refused_and_change_nothing_that_is_needed():
    rows = make()
    first = place(rows, 1, 6)
    rows.find_needed = lambda: {first}
    with pytest.raises(ValueError, match="5 rows of a span, and room for 4 of 10"):
        place(rows, 2, 5)
    for wrong in (torch.zeros(2, 4), torch.zeros(3)):
        with pytest.raises(ValueError, match="for embeddings of 3"):
            rows.place(bytes(16), wrong)
    assert torch.equal(placed_at(rows, first), rows_of(1, 6))
    place(rows, 2, 4)


def test_rows_are_kept_in_the_number_format_of_the_model():
    rows = SpanRows((3, 3), torch.bfloat16, CPU, 4)
    rows.place(bytes(16), rows_of(1, 2))
    embedded = torch.zeros(2, 3, dtype=torch.bfloat16)
    rows.overwrite(embedded, torch.tensor(rows.find(bytes(16)), dtype=torch.int32))
    assert torch.equal(embedded, rows_of(1, 2).bfloat16())
