from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.operations import paged_decode as module
from kernels.operations.paged_decode import paged_decode, paged_decode_reference
from tests.kernels.cases import DEVICES, OPTIONS, WINDOWS, PagedCase, Shape, assert_close, make_paged_case
from tests.kernels.each_case import each_case
from tests.naming import naming

SHAPES = [
    Shape(12, 12, 64, 16),
    Shape(8, 4, 80, 16),
    Shape(8, 2, 96, 1),
    Shape(8, 1, 128, 64),
    Shape(3, 3, 8, 16),
    Shape(5, 1, 16, 1),
    Shape(16, 2, 512, 16),
]
NUM_KEYS = [1, 2, 16, 17, 63, 64, 65, 130]
LONG_NUM_KEYS = [255, 256, 257, 1, 700]
SHARING_SHAPES = [
    Shape(6, 2, 64, 1),
    Shape(6, 2, 64, 16),
    Shape(4, 4, 80, 16),
    Shape(6, 2, 64, 64),
    Shape(6, 2, 64, 24),
    Shape(8, 2, 512, 16),
]
SHARING_NUM_KEYS = [300, 300, 300, 290, 257, 256, 280, 300, 300, 150, 400]
NUM_SHARED = [0, 0, 256, 256, 192, 192, 128, 80, 16, 64, 300]
"""Leading tokens of each row of `SHARING_NUM_KEYS` in the first row's pages, rounded down to whole pages."""
PAGE_SIZES = {64: (1, 16), 80: (64, 1), 96: (16, 64), 128: (1, 16)}
GRID = [
    Shape(2 * (1 + index), 2, head_dim, page_size)
    for index, (head_dim, page_size) in enumerate((dim, size) for dim, sizes in PAGE_SIZES.items() for size in sizes)
] + [Shape(8, 1, 256, 16), Shape(8, 1, 512, 16), Shape(6, 2, 500, 16)]
"""Head dimensions and page sizes, with 1 to 8 query heads a key/value head."""


def run(case: PagedCase) -> torch.Tensor:
    out = torch.full_like(case.query, float("nan"))
    paged_decode(
        case.query,
        case.cache,
        case.page_tables,
        case.context_lens + 1,
        case.options,
        out,
    )
    return out


def run_each_alone(case: PagedCase) -> torch.Tensor:
    alone = torch.full_like(case.query, float("nan"))
    for row in range(len(case.query)):
        rows = slice(row, row + 1)
        num_keys = case.context_lens[rows] + 1
        paged_decode(case.query[rows], case.cache, case.page_tables[rows], num_keys, case.options, alone[rows])
    return alone


def slot_of(case: PagedCase, row: int, position: int) -> int:
    page_size = case.cache.page_size
    return int(case.page_tables[row, position // page_size]) * page_size + position % page_size


def decode_case(shape: Shape, num_keys: list[int], dtype: torch.dtype, device: str, **options: Any) -> PagedCase:
    return make_paged_case(shape, [1] * len(num_keys), [n - 1 for n in num_keys], dtype, device, **options)


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", SHAPES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_dense_attention(shape: Shape, dtype: torch.dtype, device: str) -> None:
    case = decode_case(shape, NUM_KEYS, dtype, device)
    assert_close(run(case), case.expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", GRID)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_more_keys_than_one_part_takes(shape: Shape, dtype: torch.dtype, device: str) -> None:
    case = decode_case(shape, LONG_NUM_KEYS, dtype, device)
    assert_close(run(case), case.expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", [Shape(6, 2, 64, 16), Shape(4, 4, 80, 1), Shape(6, 2, 16, 24)])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_windows(shape: Shape, dtype: torch.dtype, device: str) -> None:
    """Nothing behind a window is read: its pages may have been freed."""
    for window in WINDOWS:
        with naming(window=window):
            case = decode_case(shape, [*NUM_KEYS, *LONG_NUM_KEYS], dtype, device, window=window)
            assert_close(run(case), case.expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("options", OPTIONS)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_soft_cap_and_sinks(dtype: torch.dtype, options: str, device: str) -> None:
    case = decode_case(Shape(6, 2, 64, 16), [*NUM_KEYS, *LONG_NUM_KEYS], dtype, device, **OPTIONS[options])
    assert_close(run(case), case.expected, dtype)


@each_case("options", [{}, OPTIONS["all"]])
@each_case("num_threads", [1, 2, 3])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_alone_and_in_a_batch(
    backend: str, dtype: torch.dtype, num_threads: int, options: dict[str, Any]
) -> None:
    """To the last bit, with any number of threads: a request gives the same tokens in any batch."""
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of rows")
    case = decode_case(Shape(6, 2, 64, 16), [*NUM_KEYS, *LONG_NUM_KEYS], dtype, "cpu", **options)
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(run(case), run_each_alone(case))
    finally:
        torch.set_num_threads(1)


@each_case("shape", SHARING_SHAPES)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_alone_and_next_to_rows_that_share_its_pages(
    backend: str, shape: Shape, dtype: torch.dtype
) -> None:
    """To the last bit, whether they share all of a part of its keys, or some, or the same pages in another order."""
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of rows")
    case = decode_case(shape, SHARING_NUM_KEYS, dtype, "cpu")
    for row, num_shared in enumerate(NUM_SHARED):
        num_pages = num_shared // shape.page_size
        case.page_tables[row, :num_pages] = case.page_tables[0, :num_pages].clone()
    first = case.page_tables[0, : 256 // shape.page_size]
    case.page_tables[1, : len(first)] = first.flip(0)
    for window in [None, 1, 100, 256, 290]:
        windowed = replace(case, options=replace(case.options, window=window, softcap=window and 4.0))
        with naming(window=window):
            assert torch.equal(run(windowed), run_each_alone(windowed))


@each_case("num_rows", [2, 3, 17, 20])
@each_case("shape", SHARING_SHAPES)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_draft_are_each_the_same_alone(backend: str, shape: Shape, dtype: torch.dtype, num_rows: int) -> None:
    """To the last bit: they have the same pages and one key more from row to row, and what a draft token that is not
    finite leaves in the cache reaches no row before it."""
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of rows")
    num_keys = [3, *range(119, 119 + num_rows), 140]
    case = decode_case(shape, num_keys, dtype, "cpu")
    case.page_tables[1 : 1 + num_rows] = case.page_tables[num_rows].clone()
    case.cache.values[slot_of(case, num_rows, 118 + num_rows - 1)] = float("nan")
    others = [row for row in range(len(num_keys)) if row != num_rows]
    for window in [None, 5, 64, 100]:
        windowed = replace(case, options=replace(case.options, window=window))
        with naming(window=window):
            out = run(windowed)
            assert not bool(out[num_rows].isfinite().any())
            assert torch.equal(out[others], run_each_alone(windowed)[others])
            assert bool(out[others].isfinite().all())


@each_case("dtype", [torch.float32, torch.bfloat16])
def test_many_rows_that_share_pages(dtype: torch.dtype) -> None:
    case = decode_case(Shape(4, 2, 64, 16), [140] * 40, dtype, "cpu")
    case.page_tables[1::2, :8] = case.page_tables[1, :8].clone()
    expected = torch.empty_like(case.query)
    num_keys = case.context_lens + 1
    paged_decode_reference(case.query, case.cache, case.page_tables, num_keys, case.options, expected)
    assert_close(run(case), expected, dtype)
    assert_close(run(case)[::2], case.expected[::2], dtype)


@each_case("dtype", [torch.float32, torch.bfloat16])
def test_no_rows(dtype: torch.dtype) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [3], dtype, "cpu")
    none = torch.empty(0, dtype=torch.int32)
    paged_decode(case.query[:0], case.cache, case.page_tables[:0], none, case.options, torch.empty_like(case.query[:0]))


@each_case("elements", [1, 3000, 1 << 20])
def test_rows_taken_in_groups_give_the_same(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(module, "MAX_GATHERED_ELEMENTS", elements)
    case = decode_case(Shape(4, 2, 16, 16), NUM_KEYS, torch.float32, "cpu")
    assert_close(run(case), case.expected, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_not_finite_leaves_the_others_alone(device: str) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [5, 40, 20], torch.float32, device)
    slot = int(case.page_tables[1, 0]) * case.cache.page_size
    case.cache.values[slot] = float("inf")
    case.cache.keys[slot] = float("nan")
    out = run(case)
    assert not bool(out[1].isfinite().any())
    assert_close(out[[0, 2]], case.expected[[0, 2]], torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_of_no_keys_leaves_the_others_alone(device: str) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [5, 40, 20], torch.float32, device)
    case.context_lens[1] = -1
    case.page_tables[1] = -1
    assert_close(run(case)[[0, 2]], case.expected[[0, 2]], torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_takes_a_query_that_is_a_view(device: str) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [9, 3], torch.float32, device)
    merged = torch.cat((case.query, torch.zeros(2, 4, 16, device=device)), dim=1)
    out = torch.full((2, 4, 16), float("nan"), device=device)
    paged_decode(
        merged[:, :4],
        case.cache,
        case.page_tables,
        case.context_lens + 1,
        case.options,
        out,
    )
    assert_close(out, case.expected, torch.float32)
