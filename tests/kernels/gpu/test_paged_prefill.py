import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.rows import PrefillRows
from kernels.gpu.launch_table import HOPPER, count_tile_tokens, find_capability
from kernels.operations.paged_prefill import paged_prefill
from kernels.plans.prefill_tiles import TILE_WORDS, max_prefill_tiles, plan_prefill_tiles
from tests.kernels.cases import OPTIONS, PagedCase, Shape, assert_close, dense_attention, make_paged_case, with_spans
from tests.kernels.gpu.test_paged_decode import DTYPES, GRID, make_huge_cache

QUERY_LENS = [1, 7, 65, 1]
CONTEXT_LENS = [0, 129, 3, 64]


def plan_tiles(case: PagedCase, max_tokens: int, max_rows: int) -> Tensor:
    num_heads, head_dim = case.query.shape[1:]
    tile_tokens = count_tile_tokens(num_heads // case.cache.num_heads, head_dim, case.query.dtype.itemsize)
    tiles = np.full(
        (max_prefill_tiles(max_tokens, max_rows, tile_tokens), TILE_WORDS), np.iinfo(np.int32).max, np.int32
    )
    plan_prefill_tiles(case.query_lens.cpu().numpy(), case.context_lens.cpu().numpy(), tiles, tile_tokens)
    return torch.from_numpy(tiles).to(case.query.device)


def run(case: PagedCase, tiles: Tensor | None = None) -> Tensor:
    out = torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens, tiles, case.last_keys)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    return out


@pytest.mark.parametrize(("shape", "dtype"), GRID, ids=str)
def test_equals_dense_attention(shape: Shape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    shape = dataclasses.replace(shape, num_heads=min(shape.num_heads, 2))
    case = make_paged_case(shape, QUERY_LENS, CONTEXT_LENS, dtype, device)
    assert_close(run(case), case.expected, dtype)
    assert backend["paged_prefill"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_heads_of_512(dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    case = make_paged_case(Shape(16, 2, 512, 16), [9, 1], [20, 0], dtype, device)
    assert_close(run(case), case.expected, dtype)
    assert backend["paged_prefill"] == 1


@pytest.mark.parametrize("window", [1, 15, 64, 65, 100, 1000])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_windows(window: int, head_dim: int, device: str) -> None:
    """Nothing behind the window of a row's first token is read: its pages may have been freed."""
    shape = Shape(2, 1, head_dim, 16)
    case = make_paged_case(shape, [*QUERY_LENS, 3], [*CONTEXT_LENS, 300], torch.float32, device, window=window)
    assert_close(run(case), case.expected, torch.float32)


@pytest.mark.parametrize("window", [None, 15, 64])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_tokens_of_a_span_attend_to_all_of_it(window: int | None, head_dim: int, device: str) -> None:
    """Spans over tiles and blocks, side by side, and behind a part that is in the cache."""
    shape = Shape(2, 1, head_dim, 16)
    case = make_paged_case(shape, [150, 7, 3], [61, 0, 100], torch.float32, device, window=window)
    case = with_spans(case, {0: [(60, 130), (131, 140), (140, 210)], 1: [(0, 7)], 2: [(90, 103)]})
    assert_close(run(case), case.expected, torch.float32)


@pytest.mark.parametrize("options", OPTIONS)
def test_soft_cap_and_sinks(options: str, device: str) -> None:
    case = make_paged_case(Shape(6, 2, 16, 16), QUERY_LENS, CONTEXT_LENS, torch.float32, device, **OPTIONS[options])
    assert_close(run(case), case.expected, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_read_those_of_their_group(dtype: torch.dtype, device: str) -> None:
    """Three heads a group leave a row of a tile without a token."""
    case = make_paged_case(Shape(6, 2, 64, 16), [25, 3], [0, 70], dtype, device)
    tiles = plan_tiles(case, 28, 2)
    assert (tiles[:, 3].max(), tiles[:, 0].max()) == (21, 1)
    assert_close(run(case, tiles), case.expected, dtype)


def test_tiles_are_as_large_as_the_table_reports(device: str) -> None:
    """GPT-2's heads have an entry: 128 rows are 128 tokens of one head."""
    case = make_paged_case(Shape(2, 2, 64, 16), [129, 3], [0, 70], torch.bfloat16, device)
    tiles = plan_tiles(case, 132, 2)
    if find_capability() == HOPPER:
        assert tiles[:, 3].max() == 128
    assert_close(run(case, tiles), case.expected, torch.bfloat16)


def test_a_padded_step(device: str) -> None:
    """Fewer rows, tokens and tiles than there is room for: what is beyond is neither read nor written."""
    case = make_paged_case(Shape(2, 1, 32, 16), [5, 66, 1], [20, 0, 7], torch.float32, device)
    num_rows, num_tokens = 6, 80
    padded = dataclasses.replace(
        case,
        query=torch.cat((case.query, case.query.new_full((num_tokens - 72, 2, 32), float("nan")))),
        page_tables=torch.cat((case.page_tables, torch.full_like(case.page_tables, -1))),
        query_lens=torch.cat((case.query_lens, torch.zeros_like(case.query_lens))),
        context_lens=torch.cat((case.context_lens, torch.zeros_like(case.context_lens))),
    )
    out = run(padded, plan_tiles(padded, num_tokens, num_rows))
    assert_close(out[:72], case.expected, torch.float32)
    assert bool(out[72:].isnan().all())


def test_a_row_that_is_not_finite_leaves_the_others_alone(device: str) -> None:
    case = make_paged_case(Shape(4, 2, 16, 16), [3, 5, 4], [20, 0, 2], torch.float32, device)
    case.cache.values[int(case.page_tables[1, 0]) * case.cache.page_size] = float("nan")
    out = run(case)
    assert not bool(out[3:8].isfinite().any())
    assert_close(out[:3], case.expected[:3], torch.float32)
    assert_close(out[8:], case.expected[8:], torch.float32)


def test_takes_a_query_that_is_a_view(device: str) -> None:
    case = make_paged_case(Shape(4, 2, 16, 16), [9, 3], [0, 1], torch.float32, device)
    merged = torch.cat((case.query, torch.zeros(12, 4, 16, device=device)), dim=1)
    assert_close(run(dataclasses.replace(case, query=merged[:, :4])), case.expected, torch.float32)


def test_no_rows(device: str) -> None:
    case = make_paged_case(Shape(4, 2, 16, 16), [3], [0], torch.float32, device)
    none, empty = torch.empty(0, dtype=torch.int32, device=device), torch.empty_like(case.query[:0])
    paged_prefill(case.query[:0], case.cache, PrefillRows(case.page_tables[:0], none, none), case.options, empty)


def test_slots_beyond_31_bits_of_elements(device: str) -> None:
    cache, page = make_huge_cache(device)
    slots = slice(page * 16, page * 16 + 9)
    cache.keys[slots] = torch.randn(9, 2, 64, generator=torch.Generator().manual_seed(0)).half().to(device)
    query = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(1)).half().to(device)
    columns = torch.tensor([[page], [4], [5]], dtype=torch.int32, device=device)
    out = torch.full_like(query, float("nan"))
    paged_prefill(query, cache, PrefillRows(columns[:1], columns[1], columns[2]), AttentionOptions(0.125), out)
    kv = cache.keys[slots].cpu()
    assert_close(out.cpu(), dense_attention(query.cpu(), kv, kv, AttentionOptions(0.125)), torch.float16)
