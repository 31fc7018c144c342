"""Slicing, filling and joining of columns by their descriptions."""

import random
from typing import Any

import msgspec
import pytest

from messages.columns import num_int32, pack_float32, pack_int32, pack_int64, unpack_int32
from messages.ring.axes import columns_of, fill_columns, join_columns, slice_columns
from messages.ring.steps import (
    DECODE_ROW,
    ROW,
    SAMPLED,
    TOKEN,
    WITH_LOGPROB,
    Batch,
    LogitsProcessing,
    LogprobColumns,
    PromptLogprobTargets,
)


def make_batch(**changes: Any) -> Batch:
    """Three decode rows, and prompts of 2 and 3 tokens of which the second samples; two pages per row."""
    sizes = {ROW: 5, TOKEN: 8, SAMPLED: 4, DECODE_ROW: 3}
    known = fill_columns(
        Batch,
        sizes,
        uids=pack_int64([10, 11, 12, 13, 14]),
        query_lens=pack_int32([1, 1, 1, 2, 3]),
        token_ids=pack_int32(range(100, 108)),
        page_tables=pack_int32(range(10)),
        sample_tokens=pack_int32([0, 1, 2, 7]),
        top_ks=pack_int32([1, 2, 3, 4]),
    )
    return Batch(**{"step_id": 3, "num_decode_rows": 3, "num_pages_per_row": 2, **known, **changes})


def test_what_belongs_to_rows_is_cut_out_with_them() -> None:
    part = slice_columns(make_batch(future_token_indices=pack_int32([5, -1, 6])), ROW, 2, 5, num_decode_rows=1)
    assert list(unpack_int32(part.query_lens)) == [1, 2, 3]
    assert list(unpack_int32(part.token_ids)) == list(range(102, 108))
    assert list(unpack_int32(part.page_tables)) == list(range(4, 10))
    assert list(unpack_int32(part.sample_tokens)) == [0, 5]
    assert list(unpack_int32(part.top_ks)) == [3, 4]
    assert list(unpack_int32(part.future_token_indices)) == [6]
    assert (part.step_id, part.phase) == (3, "mixed")


def test_entries_of_entries_are_cut_out_too() -> None:
    edits = LogitsProcessing(
        penalty_rows=pack_int32([1, 3]),
        repetition_penalties=pack_float32([2, 4]),
        frequency_penalties=pack_float32([0, 0]),
        presence_penalties=pack_float32([0, 0]),
        num_history=pack_int32([2, 3]),
        num_history_prompt=pack_int32([1, 1]),
        history_ids=pack_int32([7, 8, 1, 2, 3]),
        bitmask_rows=pack_int32([0, 2, 3]),
        bitmasks=pack_int32([1, 2, 3, 4, 5, 6]),
        num_mask_words=2,
    )
    part = slice_columns(make_batch(logits_processing=edits), ROW, 3, 5).logits_processing
    assert part is not None
    assert list(unpack_int32(part.penalty_rows)) == [0]
    assert part.repetition_penalties == pack_float32([4])
    assert list(unpack_int32(part.history_ids)) == [1, 2, 3]
    assert list(unpack_int32(part.bitmask_rows)) == [0]
    assert list(unpack_int32(part.bitmasks)) == [5, 6]
    part = slice_columns(make_batch(logits_processing=edits), ROW, 1, 3).logits_processing
    assert part is not None
    assert (list(unpack_int32(part.bitmask_rows)), list(unpack_int32(part.bitmasks))) == ([1], [3, 4])
    edits = msgspec.structs.replace(edits, bitmask_rows=b"", bitmasks=b"")
    assert slice_columns(make_batch(logits_processing=edits), ROW, 2, 4).logits_processing is None


def test_an_optional_column_that_reports_nothing_is_empty() -> None:
    batch = make_batch(num_logprobs=pack_int32([-1, -1, -1, 2]))
    assert slice_columns(batch, ROW, 0, 4).num_logprobs == b""
    assert list(unpack_int32(slice_columns(batch, ROW, 2, 5).num_logprobs)) == [-1, 2]


def test_tokens_of_a_prompt_are_cut_out_by_tokens() -> None:
    targets = PromptLogprobTargets(pack_int32([3, 5, 6]), pack_int32([30, 50, 60]), 2)
    part = slice_columns(make_batch(prompt_logprobs=targets), ROW, 4, 5).prompt_logprobs
    assert part == PromptLogprobTargets(pack_int32([0, 1]), pack_int32([50, 60]), 2)


@pytest.mark.parametrize("num_top", [0, 2])
def test_parts_that_are_joined_are_the_whole(num_top: int) -> None:
    columns = LogprobColumns(
        pack_int32(range(4)),
        pack_float32(range(4)),
        num_top,
        pack_int32(range(4 * num_top)),
        pack_float32(range(4 * num_top)),
    )
    for middle in range(5):
        parts = [slice_columns(columns, WITH_LOGPROB, 0, middle), slice_columns(columns, WITH_LOGPROB, middle, 4)]
        assert join_columns(parts) == columns
        assert num_int32(parts[0].top_ids) == middle * num_top


def test_filled_columns_have_the_sizes_of_their_axes() -> None:
    sizes = {ROW: 3, TOKEN: 5, SAMPLED: 2, DECODE_ROW: 1}
    for is_dummy in (False, True):
        filled = fill_columns(Batch, sizes, is_dummy, sample_tokens=pack_int32([0, 4]))
        for name, column in columns_of(Batch).items():
            expected = b"" if column.is_optional and not is_dummy else column.pack([0] * sizes.get(column.axis, 0))
            assert len(filled[name]) == len(expected), name
    assert filled["sample_tokens"] == pack_int32([0, 4])


@pytest.mark.parametrize("struct", [Batch, LogitsProcessing, PromptLogprobTargets, LogprobColumns])
def test_each_column_is_described(struct: type[msgspec.Struct]) -> None:
    described = set(columns_of(struct))
    raw = {field.name for field in msgspec.structs.fields(struct) if field.type is bytes}
    assert not raw - described


def test_any_halves_of_a_step_hold_all_of_it() -> None:
    chance = random.Random(1)
    batch = make_batch()
    for _ in range(20):
        middle = chance.randrange(6)
        halves = [slice_columns(batch, ROW, 0, middle), slice_columns(batch, ROW, middle, 5)]
        for name, column in columns_of(Batch).items():
            if column.axis in (ROW, TOKEN) or name in ("temperatures", "top_ks", "page_tables"):
                assert b"".join(getattr(half, name) for half in halves) == getattr(batch, name), name
