import dataclasses
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.operations.paged_decode import paged_decode
from kernels.plans.decode_work import (
    LANES,
    DecodeLayout,
    DecodeScratch,
    DecodeWork,
    make_decode_scratch,
    plan_decode_work,
)
from tests.kernels.cases import (
    OPTIONS,
    PagedCase,
    Shape,
    assert_close,
    dense_attention,
    first_seen,
    make_paged_case,
)
from tests.kernels.gpu.huge_memory import make_huge

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
GRID = [
    (Shape(1 + index % 8, 1, head_dim, page_size), DTYPES[index % 3])
    for index, (page_size, head_dim) in enumerate(itertools.product((1, 16, 64), (64, 80, 96, 128)))
]
"""Head dimensions and page sizes, with 1 to 8 query heads a key/value head."""
NUM_KEYS = [1, 17, 64, 130]
MERGES = pytest.mark.parametrize("merges_in_kernel", [False, True], ids=["two kernels", "one kernel"])


def plan_work(case: PagedCase, layout: DecodeLayout, num_keys: Tensor) -> DecodeWork:
    words = np.full(layout.num_words, np.iinfo(np.int32).max, np.int32)
    tables = case.page_tables[: len(num_keys)].cpu().numpy()
    plan_decode_work(layout, num_keys.cpu().numpy(), tables, case.cache.page_size, words, case.options.window)
    device = case.query.device
    return DecodeWork(
        layout, torch.from_numpy(words).to(device), make_decode_scratch(layout, case.query.shape[2], device)
    )


def run(case: PagedCase, work: DecodeWork | None = None) -> Tensor:
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out, work)
    return out


def decode_case(shape: Shape, num_keys: list[int], dtype: torch.dtype, device: str, **options: Any) -> PagedCase:
    return make_paged_case(shape, [1] * len(num_keys), [n - 1 for n in num_keys], dtype, device, **options)


def share(case: PagedCase, groups: list[tuple[list[int], int]]) -> PagedCase:
    """Returns the case with the leading pages of each group's first row in the tables of all its rows."""
    tables, expected = case.page_tables.clone(), []
    for rows, num_pages in groups:
        tables[rows, :num_pages] = tables[rows[0], :num_pages].clone()
    for row, last in enumerate(case.context_lens.tolist()):
        positions = torch.arange(first_seen(last, case.options), last + 1, device=tables.device)
        slots = case.cache.find_slots(tables[row : row + 1], positions[None])[0]
        kv = (case.cache.keys[slots].cpu(), case.cache.values[slots].cpu())
        expected.append(dense_attention(case.query[row : row + 1].cpu(), *kv, case.options))
    return dataclasses.replace(case, page_tables=tables, attend=lambda: torch.cat(expected).to(tables.device))


@pytest.mark.parametrize(("shape", "dtype"), GRID, ids=str)
def test_equals_dense_attention(shape: Shape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    case = decode_case(shape, NUM_KEYS, dtype, device)
    assert_close(run(case), case.expected, dtype)
    assert backend["paged_decode"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_heads_of_512(dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    case = decode_case(Shape(16, 2, 512, 16), [70, 1, 129], dtype, device)
    assert_close(run(case), case.expected, dtype)
    assert backend["paged_decode"] == 1


@pytest.mark.parametrize("dtype", DTYPES)
@MERGES
def test_several_heads_and_rows_of_one_part_next_to_rows_of_many(
    dtype: torch.dtype, merges_in_kernel: bool, device: str
) -> None:
    case = decode_case(Shape(4, 2, 64, 16), [300, 1, 129], dtype, device)
    work = plan_work(case, DecodeLayout(3, 4, 2, 8, False, merges_in_kernel), case.context_lens + 1)
    assert_close(run(case, work), case.expected, dtype)
    assert not bool(work.scratch.counters.any())


@pytest.mark.parametrize("window", [1, 15, 64, 65, 1000])
def test_windows(window: int, device: str) -> None:
    """Nothing behind a window is read: its pages may have been freed."""
    case = decode_case(Shape(4, 2, 64, 16), [300, 1, 129, 64], torch.float32, device, window=window)
    assert_close(run(case), case.expected, torch.float32)
    work = plan_work(case, DecodeLayout(4, 4, 2, 8, True), case.context_lens + 1)
    assert count_keys(work) == sum(min(window, num_keys) for num_keys in (300, 1, 129, 64))
    assert_close(run(case, work), case.expected, torch.float32)


@pytest.mark.parametrize("options", OPTIONS)
@MERGES
def test_soft_cap_and_sinks(options: str, merges_in_kernel: bool, device: str) -> None:
    """In rows of one part and of several."""
    case = decode_case(Shape(6, 2, 16, 16), [300, 1, 129], torch.float32, device, **OPTIONS[options])
    work = plan_work(case, DecodeLayout(3, 6, 2, 8, False, merges_in_kernel), case.context_lens + 1)
    assert_close(run(case, work), case.expected, torch.float32)


def test_rows_that_share_pages_of_which_some_are_behind_a_window(device: str) -> None:
    case = decode_case(Shape(3, 1, 16, 64), [193, 200, 207, 400], torch.float32, device)
    case = dataclasses.replace(case, options=AttentionOptions(0.25, window=200))
    case = share(case, [([0, 1, 2, 3], 3)])
    work = plan_work(case, DecodeLayout(4, 3, 1, 4, True), case.context_lens + 1)
    assert count_keys(work) == 192 + 1 + 8 + 200 + 200, "only the rows that see all of it share it"
    assert_close(run(case, work), case.expected, torch.float32)


@pytest.mark.parametrize(("merges_in_kernel", "num_parts"), [(False, 33), (True, 17)])
def test_a_row_of_more_parts_than_are_merged_at_a_time(merges_in_kernel: bool, num_parts: int, device: str) -> None:
    """The last key has most of the weight, so that what was merged before it must shrink."""
    num_keys = 128 * num_parts - 5
    case = decode_case(Shape(1, 1, 16, 64), [num_keys], torch.float32, device)
    last = case.cache.find_slots(case.page_tables, torch.tensor([[num_keys - 1]], device=device))[0]
    case.cache.keys[last] = 3 * case.query
    case = share(case, [])
    work = plan_work(case, DecodeLayout(1, 1, 1, num_parts, False, merges_in_kernel), case.context_lens + 1)
    assert int(work.plan[0]) == num_parts
    assert_close(run(case, work), case.expected, torch.float32)
    assert not bool(work.scratch.counters.any())


@pytest.mark.parametrize("group_size", [2, 5, 6])
@MERGES
def test_rows_that_share_pages(group_size: int, merges_in_kernel: bool, device: str) -> None:
    """One group of rows over three pages of 64, in another order than their rows', and a row that shares nothing."""
    num_keys = [193 + 7 * row for row in range(group_size)] + [70]
    rows = list(range(group_size))
    case = share(decode_case(Shape(3, 1, 16, 64), num_keys, torch.float32, device), [(rows[::-1], 3)])
    layout = DecodeLayout(group_size + 1, 3, 1, 4, True, merges_in_kernel)
    work = plan_work(case, layout, case.context_lens + 1)
    num_blocks = -(-group_size // (LANES // 3))
    assert count_keys(work) == sum(num_keys) - 192 * (group_size - num_blocks)
    assert_close(run(case, work), case.expected, torch.float32)
    assert not bool(work.scratch.counters.any())


def test_groups_within_a_group(device: str) -> None:
    dtype = torch.bfloat16
    case = decode_case(Shape(4, 2, 80, 16), [400, 290, 258, 270, 140, 3], dtype, device)
    case = share(case, [([0, 1, 2, 3, 4], 8), ([0, 3], 16), ([1, 2], 16)])
    work = plan_work(case, DecodeLayout(6, 4, 2, 8, True, merges_in_kernel=True), case.context_lens + 1)
    assert count_keys(work) == 128 + 2 * 128 + 144 + 34 + 2 + 14 + 12 + 3
    first = run(case, work)
    assert_close(first, case.expected, dtype)
    # What a launch leaves in the scratch is not seen by the next one, another layer's.
    poison(work.scratch)
    assert torch.equal(run(case, work), first)


def count_keys(work: DecodeWork) -> int:
    items = work.plan[4 : 4 + 4 * int(work.plan[0])].view(-1, 4)
    return int((items[:, 1] - items[:, 0]).sum())


@MERGES
def test_padded_rows_are_left_alone(merges_in_kernel: bool, device: str) -> None:
    """Rows of 0 keys with no pages, and rows that the plan knows nothing of, as a captured step has them."""
    case = decode_case(Shape(4, 2, 16, 16), [200, 1, 5, 140, 9], torch.float32, device)
    case.context_lens[1] = -1
    case.page_tables[1] = -1
    case.query[[1, 4]] = float("nan")
    layout = DecodeLayout(8, 4, 2, 16, True, merges_in_kernel)
    work = plan_work(case, layout, case.context_lens[:4] + 1)
    out = run(case, work)
    assert bool(out[[1, 4]].isnan().all())
    assert_close(out[[0, 2, 3]], case.expected[[0, 2, 3]], torch.float32)
    nothing = plan_work(case, layout, case.context_lens[:0])
    assert bool(run(case, nothing).isnan().all())


def test_a_scratch_for_more_serves_fewer(device: str) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [200, 40], torch.float32, device)
    layout = DecodeLayout(2, 4, 2, 16, True)
    work = plan_work(case, layout, case.context_lens + 1)
    larger = make_decode_scratch(dataclasses.replace(layout, max_rows=9), 16, case.query.device)
    assert_close(run(case, dataclasses.replace(work, scratch=larger)), case.expected, torch.float32)


def test_a_row_that_is_not_finite_leaves_the_others_alone(device: str) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [5, 300, 20], torch.float32, device)
    slot = int(case.page_tables[1, 0]) * case.cache.page_size
    case.cache.values[slot] = float("inf")
    case.cache.keys[slot] = float("nan")
    work = plan_work(case, DecodeLayout(3, 4, 2, 16, True), case.context_lens + 1)
    out = run(case, work)
    assert not bool(out[1].isfinite().any())
    assert_close(out[[0, 2]], case.expected[[0, 2]], torch.float32)


def test_takes_a_query_that_is_a_view(device: str) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [9, 3], torch.float32, device)
    merged = torch.cat((case.query, torch.zeros(2, 4, 16, device=device)), dim=1)
    assert_close(run(dataclasses.replace(case, query=merged[:, :4])), case.expected, torch.float32)


def test_no_rows(device: str) -> None:
    case = decode_case(Shape(4, 2, 16, 16), [3], torch.float32, device)
    none = torch.empty(0, dtype=torch.int32, device=device)
    paged_decode(case.query[:0], case.cache, case.page_tables[:0], none, case.options, torch.empty_like(case.query[:0]))


def make_huge_cache(device: str) -> tuple[PagedKV, int]:
    """Returns a cache of more than 2^31 elements and its last page."""
    num_slots = (1 << 24) + 64
    keys = make_huge(num_slots, (2, 64), torch.float16, device)
    return PagedKV(keys, keys, 16), num_slots // 16 - 1


def test_slots_beyond_31_bits_of_elements(device: str) -> None:
    cache, page = make_huge_cache(device)
    slots = slice(page * 16, page * 16 + 9)
    cache.keys[slots] = torch.randn(9, 2, 64, generator=torch.Generator().manual_seed(0)).half().to(device)
    query = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(1)).half().to(device)
    table = torch.tensor([[page]], dtype=torch.int32, device=device)
    out = torch.full_like(query, float("nan"))
    paged_decode(query, cache, table, torch.tensor([9], dtype=torch.int32, device=device), AttentionOptions(0.125), out)
    kv = cache.keys[slots].cpu()
    assert_close(out.cpu(), dense_attention(query.cpu(), kv, kv, AttentionOptions(0.125)), torch.float16)


@pytest.mark.gpu
def test_merges_give_the_same_bits_a_thousand_times(device: str) -> None:
    """Programs finish in another order each time; a merge that reads what is not yet written shows as other bits."""
    if device != "cuda":
        pytest.skip("needs programs that run side by side")
    num_keys = [1 + 397 * row % 3000 for row in range(64)]
    case = decode_case(Shape(16, 8, 128, 16), num_keys, torch.bfloat16, device)
    case = share(case, [([row for row in range(64) if num_keys[row] > 500], 24)])
    num_programs = 4 * torch.cuda.get_device_properties(0).multi_processor_count
    two = plan_work(case, DecodeLayout(64, 16, 8, num_programs, True), case.context_lens + 1)
    expected = run(case, two)
    assert_close(expected, case.expected, torch.bfloat16)
    one = plan_work(case, DecodeLayout(64, 16, 8, num_programs, True, merges_in_kernel=True), case.context_lens + 1)
    first = run(case, one)
    assert_close(first, expected, torch.bfloat16)
    for _ in range(1000):
        poison(one.scratch)
        assert torch.equal(run(case, one), first)
    assert not bool(one.scratch.counters.any())


def poison(scratch: DecodeScratch) -> None:
    scratch.partials.fill_(float("nan"))
    scratch.lses.fill_(float("nan"))
