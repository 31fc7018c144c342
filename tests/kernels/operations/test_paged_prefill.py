from typing import Any

import pytest
import torch

from kernels.arguments.rows import PrefillRows
from kernels.operations.paged_prefill import paged_prefill
from tests.kernels.cases import (
    DEVICES,
    OPTIONS,
    WINDOWS,
    PagedCase,
    Shape,
    assert_close,
    dense_attention,
    make_paged_case,
    with_codes,
    with_spans,
)
from tests.kernels.each_case import each_case
from tests.kernels.operations.test_paged_decode import GRID, SHAPES
from tests.naming import naming

QUERY_LENS = [1, 7, 16, 33, 64, 5, 1]
CONTEXT_LENS = [0, 0, 16, 3, 70, 129, 48]


def run(case: PagedCase) -> torch.Tensor:
    out = torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens, last_keys=case.last_keys)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    return out


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", SHAPES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_dense_attention(shape: Shape, dtype: torch.dtype, device: str) -> None:
    case = make_paged_case(shape, QUERY_LENS, CONTEXT_LENS, dtype, device)
    assert_close(run(case), case.expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", GRID)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_rows_longer_than_a_tile(shape: Shape, dtype: torch.dtype, device: str) -> None:
    case = make_paged_case(shape, [65, 1, 130], [0, 200, 61], dtype, device)
    assert_close(run(case), case.expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", [Shape(6, 2, 64, 16), Shape(4, 4, 80, 1), Shape(6, 2, 16, 24)])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_windows(shape: Shape, dtype: torch.dtype, device: str) -> None:
    """Nothing behind the window of a row's first new token is read: its pages may have been freed."""
    for window in WINDOWS:
        with naming(window=window):
            case = make_paged_case(shape, [*QUERY_LENS, 150], [*CONTEXT_LENS, 61], dtype, device, window=window)
            assert_close(run(case), case.expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("options", OPTIONS)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_soft_cap_and_sinks(dtype: torch.dtype, options: str, device: str) -> None:
    lens = [*QUERY_LENS, 150], [*CONTEXT_LENS, 61]
    case = make_paged_case(Shape(6, 2, 64, 16), *lens, dtype, device, **OPTIONS[options])
    assert_close(run(case), case.expected, dtype)


SPANS = {0: [(60, 130), (131, 140), (140, 210)], 1: [(0, 40)], 3: [(100, 105)]}
"""Spans of rows with 150, 40, 3 and 5 new tokens after 61, 0, 129 and 100: over blocks and tiles, side by side, at both
ends, and behind a part that is in the cache."""

SPAN_OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "all": OPTIONS["all"],
    "window": {"window": 5},
    "wide": {"window": 64},
}


def make_span_case(dtype: torch.dtype, device: str, options: str) -> PagedCase:
    return make_paged_case(
        Shape(6, 2, 64, 16), [150, 40, 3, 5], [61, 0, 129, 100], dtype, device, **SPAN_OPTIONS[options]
    )


@pytest.mark.parametrize("device", DEVICES)
@each_case("options", SPAN_OPTIONS)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_tokens_of_a_span_attend_to_all_of_it(dtype: torch.dtype, options: str, device: str) -> None:
    case = make_span_case(torch.float32 if dtype == torch.int8 else dtype, device, options)
    case = with_spans(with_codes(case, torch.int8) if dtype == torch.int8 else case, SPANS)
    assert_close(run(case), case.expected, case.query.dtype)


@each_case("options", SPAN_OPTIONS)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_tokens_outside_of_spans_and_in_chunks_between_them_keep_their_bits(
    backend: str, dtype: torch.dtype, options: str
) -> None:
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of tokens")
    plain = make_span_case(dtype, "cpu", options)
    case = with_spans(plain, SPANS)
    assert case.last_keys is not None
    own = torch.cat([torch.arange(61, 211), torch.arange(40), torch.arange(129, 132), torch.arange(100, 105)])
    found, is_outside = run(case), case.last_keys == own
    assert torch.equal(found[is_outside], run(plain)[is_outside])
    assert not torch.equal(found, run(plain))
    chunked = torch.full_like(case.query, float("nan"))
    for start, end in ((0, 10), (10, 69), (69, 79), (79, 150)):
        lens = (torch.tensor([end - start], dtype=torch.int32), torch.tensor([61 + start], dtype=torch.int32))
        rows = PrefillRows(case.page_tables[:1], *lens, last_keys=case.last_keys[start:end])
        paged_prefill(case.query[start:end], case.cache, rows, case.options, chunked[start:end])
    assert torch.equal(chunked[79:150], found[79:150])


@each_case("options", [{}, OPTIONS["all"], {"window": 5}])
@each_case("num_threads", [1, 2, 3])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_a_token_is_the_same_in_chunks_and_next_to_other_rows(
    backend: str, dtype: torch.dtype, num_threads: int, options: dict[str, Any]
) -> None:
    """To the last bit, whatever the threads: so a prompt's tokens get the same however a scheduler cuts it up."""
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of tokens")
    case = make_paged_case(Shape(6, 2, 64, 16), [150, 40, 3], [70, 0, 129], dtype, "cpu", **options)
    chunked, first = torch.full_like(case.query, float("nan")), 0
    for row, (num_new, num_before) in enumerate(zip([150, 40, 3], [70, 0, 129], strict=True)):
        for start in range(0, num_new, 37):
            size = min(37, num_new - start)
            tokens = slice(first + start, first + start + size)
            lens = (torch.tensor([size], dtype=torch.int32), torch.tensor([num_before + start], dtype=torch.int32))
            table = case.page_tables[row : row + 1]
            rows = PrefillRows(table, *lens)
            paged_prefill(case.query[tokens], case.cache, rows, case.options, chunked[tokens])
        first += num_new
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(run(case), chunked)
    finally:
        torch.set_num_threads(1)


@each_case("dtype", [torch.float32, torch.bfloat16])
def test_scores_that_rise_from_block_to_block(dtype: torch.dtype) -> None:
    """By little and by far: weights are relative to a level that rises only where the highest score is far above it."""
    case = make_paged_case(Shape(6, 2, 64, 16), [100], [250], dtype, "cpu")
    slots = case.cache.find_slots(case.page_tables, torch.arange(350)[None])[0]
    keys, values = case.cache.keys[slots], case.cache.values[slots]
    keys *= torch.linspace(0.05, 6, 350, dtype=dtype)[:, None, None]
    case.cache.keys[slots] = keys
    expected = dense_attention(case.query, keys, values, case.options)
    assert_close(run(case), expected, dtype)


def test_no_rows() -> None:
    case = make_paged_case(Shape(4, 2, 16, 16), [3], [0], torch.float32, "cpu")
    none, empty = torch.empty(0, dtype=torch.int32), torch.empty_like(case.query[:0])
    rows = PrefillRows(case.page_tables[:0], none, none)
    paged_prefill(case.query[:0], case.cache, rows, case.options, empty)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_not_finite_leaves_the_others_alone(device: str) -> None:
    case = make_paged_case(Shape(4, 2, 16, 16), [3, 5, 4], [20, 0, 2], torch.float32, device)
    case.cache.values[int(case.page_tables[1, 0]) * case.cache.page_size] = float("nan")
    out = run(case)
    assert not bool(out[3:8].isfinite().any())
    assert_close(out[:3], case.expected[:3], torch.float32)
    assert_close(out[8:], case.expected[8:], torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_of_no_new_tokens_has_none(device: str) -> None:
    case = make_paged_case(Shape(4, 2, 16, 16), [3, 5], [20, 2], torch.float32, device)
    tables, lens = torch.full((3, case.page_tables.shape[1]), -1, dtype=torch.int32, device=device), torch.zeros(2, 3)
    lens = lens.int().to(device)
    tables[[0, 2]], lens[0, [0, 2]], lens[1, [0, 2]] = case.page_tables, case.query_lens, case.context_lens
    out = torch.full_like(case.query, float("nan"))
    paged_prefill(case.query, case.cache, PrefillRows(tables, lens[0], lens[1]), case.options, out)
    assert_close(out, case.expected, torch.float32)


def test_refuses_lengths_of_another_type() -> None:
    case = make_paged_case(Shape(2, 2, 8, 16), [3], [0], torch.float32, "cpu")
    rows = PrefillRows(case.page_tables, case.query_lens.long(), case.context_lens)
    with pytest.raises(AssertionError):
        paged_prefill(case.query, case.cache, rows, case.options, torch.empty_like(case.query))
