"""The buffer of the rows of spans: what it refuses, whose embeddings it replaces, what it shares with encoders."""

from array import array
from pathlib import Path

import pytest
import torch

from messages.ring.encodings import ROW_NOTE
from runtime.row_file import RowFile
from scheduler_proc.computing.model.span_rows import SpanRows

CPU = torch.device("cpu")


def rows_of(number: int, length: int) -> torch.Tensor:
    return torch.arange(length * 3.0).view(length, 3) + 100 * number


def make(dtype: torch.dtype = torch.float32) -> SpanRows:
    rows = SpanRows((3, 3), dtype, CPU, 10)
    free = iter(range(9, -1, -1))
    rows.reserve = lambda _, num_rows: array("i", [next(free) for _ in range(num_rows)])
    return rows


def test_tokens_get_their_rows_and_the_others_keep_their_embeddings():
    rows = make()
    rows.place(b"1", rows_of(1, 4))
    rows.place(b"2", rows_of(2, 3))
    embedded = torch.full((5, 3), -1.0)
    rows.overwrite(embedded, torch.tensor([7, -1, 5, -1, 9], dtype=torch.int32))
    expected = torch.full((5, 3), -1.0)
    expected[0], expected[2], expected[4] = rows_of(1, 4)[2], rows_of(2, 3)[0], rows_of(1, 4)[0]
    assert torch.equal(embedded, expected)


def test_rows_of_another_size_are_refused():
    rows = make()
    for wrong in (torch.zeros(2, 4), torch.zeros(3)):
        with pytest.raises(ValueError, match="for embeddings of 3"):
            rows.place(bytes(16), wrong)


def test_rows_are_kept_in_the_number_format_of_the_model():
    rows = make(torch.bfloat16)
    rows.place(bytes(16), rows_of(1, 2))
    embedded = torch.zeros(2, 3, dtype=torch.bfloat16)
    rows.overwrite(embedded, torch.tensor([9, 8], dtype=torch.int32))
    assert torch.equal(embedded, rows_of(1, 2).bfloat16())


def test_steps_read_what_an_encoder_has_written_to_the_file(tmp_path: Path):
    path = tmp_path / "rows"
    path.touch()
    rows = make()
    rows.open_file(path, 8 * 12 + 5)
    assert rows.num_rows == 8
    assert rows.notes is not None
    for index, place in enumerate((6, 2)):
        ROW_NOTE.pack_into(rows.notes, place * ROW_NOTE.size, b"key", index, 33, 0)
    file, encoded = RowFile(path), rows_of(1, 2)
    written = memoryview(encoded.numpy()).cast("B")
    assert file.write(32, (6, 2), written) is None, "the places are another ask's"
    checksum = file.write(33, (6, 2), written)
    assert rows.checksum((6, 2)) == checksum != rows.checksum((2, 6))
    rows.load((6, 2))
    embedded = torch.full((3, 3), -1.0)
    rows.overwrite(embedded, torch.tensor([2, -1, 6], dtype=torch.int32))
    assert torch.equal(embedded, torch.stack([encoded[1], torch.full((3,), -1.0), encoded[0]]))
    successor = make()
    successor.open_file(path, 8 * 12)
    assert successor.checksum((6, 2)) == checksum, "the file is kept"
    successor.open_file(path, 9 * 12)
    assert bytes(RowFile(path).rows) == bytes(9 * 12), "one of another size is emptied"
