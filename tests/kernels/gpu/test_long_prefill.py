"""Attention to long prompts, with tiles as `AttentionPlans` makes them."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.arguments.rows import PrefillRows
from kernels.gpu.launch_table import HOPPER, find_capability
from kernels.operations.paged_prefill import paged_prefill
from kernels.plans.prefill_tiles import LONG_TILES, TILE_WORDS
from tests.kernels.cases import OPTIONS, PagedCase, Shape, assert_close, make_paged_case, with_spans

pytestmark = pytest.mark.skipif(find_capability() != HOPPER, reason="other GPUs have the kernel of all prompts")
F16 = torch.float16
QUERY_LENS, CONTEXT_LENS = [1, 140, 5], [0, 3, 250]


def run(case: PagedCase, max_rows: int = 4, max_tokens: int = 200) -> Tensor:
    """There is room for more tiles than there are."""
    lines = np.full((LONG_TILES.max_lines(max_tokens, max_rows), TILE_WORDS), np.iinfo(np.int32).max, np.int32)
    LONG_TILES.plan(case.query_lens.cpu().numpy(), case.context_lens.cpu().numpy(), lines)
    tiles, out = torch.from_numpy(lines).to(case.query.device), torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens, tiles, case.last_keys, is_long=True)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    return out


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (Shape(2, 1, 128, 16), torch.bfloat16),
        (Shape(3, 1, 64, 4), torch.float16),
        (Shape(4, 2, 64, 128), torch.bfloat16),
    ],
    ids=str,
)
def test_equals_dense_attention(shape: Shape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """Keys of more than one block; what is behind a row's last key in its page is NaN."""
    case = make_paged_case(shape, QUERY_LENS, CONTEXT_LENS, dtype, device)
    assert_close(run(case), case.expected, dtype)
    assert backend["paged_prefill"] == 1


@pytest.mark.parametrize("options", ["high soft cap", "soft cap", "sinks"])
def test_soft_cap_and_sinks(options: str, device: str) -> None:
    case = make_paged_case(Shape(6, 2, 64, 16), QUERY_LENS, CONTEXT_LENS, F16, device, **OPTIONS[options])
    assert_close(run(case), case.expected, F16)


def test_tokens_of_a_span_attend_to_all_of_it(device: str) -> None:
    """Over tiles and blocks, and behind a part that is in the cache."""
    case = make_paged_case(Shape(2, 1, 64, 16), [150, 7], [61, 100], F16, device)
    case = with_spans(case, {0: [(60, 130), (140, 211)], 1: [(102, 107)]})
    assert_close(run(case), case.expected, F16)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, for scores behind the last token, which are not used
def test_rows_leave_each_other_alone(device: str) -> None:
    """Padded rows and tokens, too, and a row that is not finite."""
    case = make_paged_case(Shape(2, 1, 64, 16), [3, 130], [20, 2], F16, device)
    case.cache.values[int(case.page_tables[0, 0]) * case.cache.page_size] = float("nan")
    nothing = torch.zeros_like(case.query_lens)
    padded = dataclasses.replace(
        case,
        query=torch.cat((case.query, case.query.new_full((9, 2, 64), float("nan")))),
        page_tables=torch.cat((case.page_tables, torch.full_like(case.page_tables, -1))),
        query_lens=torch.cat((case.query_lens, nothing)),
        context_lens=torch.cat((case.context_lens, nothing)),
    )
    out = run(padded)
    assert not bool(out[:3].isfinite().any())
    assert_close(out[3:133], case.expected[3:], F16)
    assert bool(out[133:].isnan().all())


def test_takes_a_query_that_is_a_view(device: str) -> None:
    case = make_paged_case(Shape(2, 1, 64, 16), [9, 3], [0, 1], F16, device)
    merged = torch.cat((case.query, torch.zeros(12, 2, 64, dtype=F16, device=device)), dim=1)
    assert_close(run(dataclasses.replace(case, query=merged[:, :2])), case.expected, F16)
