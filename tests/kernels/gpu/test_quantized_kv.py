"""The Triton kernels on a cache of fp8 codes, against their references and what the codes stand for in float64."""

from collections import Counter
from operator import attrgetter

import pytest
import torch

from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from kernels.arguments.rows import HeadNorms, PrefillRows, RopeTables
from kernels.gpu.fusions import fuse
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from kernels.operations.rotate_store import rotate_store, rotate_store_reference
from tests.kernels.cases import Shape, assert_close, make_paged_case, with_codes

parts_of = attrgetter("keys", "values", "key_scales", "value_scales")

FP8 = torch.float8_e4m3fn
CASES = [
    (Shape(4, 2, 64, 16), torch.float32),
    (Shape(2, 1, 80, 4), torch.bfloat16),
    (Shape(3, 1, 128, 16), torch.float16),
]


@pytest.fixture(params=[(), ("fp8_attention",)], ids=["widened", "codes"])
def products(request: pytest.FixtureRequest, backend: Counter[str]) -> None:
    """Decode attention widens codes, or multiplies them as they are if queries have 16 bits."""
    fuse(*request.param)


IN_BOTH = pytest.mark.usefixtures("products")


@IN_BOTH
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_decode(shape: Shape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    case = with_codes(make_paged_case(shape, [1, 1, 1], [0, 130, 63], dtype, device), FP8)
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    assert_close(out, case.expected, dtype)
    assert backend["paged_decode"] == 1


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_prefill(shape: Shape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    case = with_codes(make_paged_case(shape, [3, 65], [0, 66], dtype, device), FP8)
    out = torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    assert_close(out, case.expected, dtype)
    assert backend["paged_prefill"] == 1


@IN_BOTH
def test_values_too_small_for_float16_are_not_lost(device: str) -> None:
    """A weight times a scale is less than float16 can hold where values are small; the output is not."""
    case = make_paged_case(Shape(2, 1, 64, 16), [1], [40], torch.float16, device)
    case.cache.values.mul_(2e-4)
    case = with_codes(case, FP8)
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    most = float(case.expected.abs().max())
    assert most < 1e-3
    assert float((out - case.expected).abs().max()) < 0.02 * most


@IN_BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_queries_and_values_of_any_size(dtype: torch.dtype, device: str) -> None:
    """Queries of 10^6 and of 10^-6 (float16 has neither), values from 10^-9 to 10^9, and of 0 only, in one row."""
    case = make_paged_case(Shape(4, 2, 64, 16), [1, 1, 1], [70, 40, 3], dtype, device)
    case.query[0].mul_(1e6)
    case.query[1].mul_(1e-6)
    case.cache.keys.div_(1e5)
    sizes = 10.0 ** torch.randint(-9, 10, (len(case.cache.values), 1, 1), generator=torch.Generator().manual_seed(2))
    sizes[::5] = 0
    case.cache.values.mul_(sizes.to(device))
    case = with_codes(case, FP8)
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    for mine, expected in zip(out.double(), case.expected, strict=True):
        assert float((mine - expected).abs().max()) < 1e-2 * float(expected.abs().max())


@IN_BOTH
def test_a_row_of_nothing_but_zeros_is_zero(device: str) -> None:
    case = make_paged_case(Shape(2, 1, 64, 16), [1], [40], torch.bfloat16, device)
    case.query.zero_()
    case.cache.values.mul_(0)
    case = with_codes(case, FP8)
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    assert not bool(out.any())


@IN_BOTH
def test_a_row_that_is_not_finite_is_seen_and_leaves_the_others_alone(device: str) -> None:
    case = with_codes(make_paged_case(Shape(4, 2, 64, 16), [1] * 3, [5, 40, 20], torch.bfloat16, device), FP8)
    assert case.cache.value_scales is not None
    case.cache.value_scales[int(case.page_tables[1, 0]) * 16] = float("nan")
    out = torch.full_like(case.query, 0.0)
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    assert not bool(out[1].isfinite().any())
    assert_close(out[[0, 2]], case.expected[[0, 2]], torch.bfloat16)


@pytest.mark.parametrize(("has_rope", "dtype"), [(True, torch.bfloat16), (True, torch.float32), (False, torch.float32)])
@pytest.mark.parametrize("shape", [(4, 2, 64), (3, 3, 10)], ids=str)
def test_storing(shape: tuple[int, int, int], has_rope: bool, dtype: torch.dtype, device: str) -> None:
    num_heads, num_kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(head_dim)
    heads = torch.randn(5, num_heads + 2 * num_kv_heads, head_dim, generator=generator)
    heads *= 10 ** (4 * torch.rand(5, num_heads + 2 * num_kv_heads, 1, generator=generator) - 2)
    heads[3, num_heads:], heads[4, num_heads:, 1] = 0, float("nan")
    heads = heads.to(dtype).to(device)
    angles = (torch.rand(40, head_dim // 2, generator=generator) * 6).to(device)
    weights = torch.rand(2, head_dim, generator=generator).to(dtype).to(device)
    rope, norms = RopeTables(angles.cos(), angles.sin()), HeadNorms(weights[0], weights[1], 1e-2)
    positions = torch.tensor([39, 0, 7, 2, 1], dtype=torch.int32, device=device)
    slots = torch.tensor([19, -1, 0, 6, 3], device=device)
    codes = torch.full((2, 2, 20, num_kv_heads, head_dim), 7.0).to(FP8).to(device)
    scales = torch.full((2, 2, 20, num_kv_heads), 5.0, dtype=SCALE_DTYPE, device=device)
    cache, expected = (PagedKV(codes[i, 0], codes[i, 1], 4, scales[i, 0], scales[i, 1]) for i in range(2))
    arguments = (rope if has_rope else None, positions, slots, norms if has_rope else None)
    rotate_store_reference(heads.clone(), expected, *arguments)
    rotate_store(heads, cache, *arguments)
    for mine, theirs in zip(parts_of(cache)[2:], parts_of(expected)[2:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2**-7 if has_rope else 0, atol=0, equal_nan=True)
        assert bool(mine[3].isnan().all())
    for mine, theirs in zip(parts_of(cache)[:2], parts_of(expected)[:2], strict=True):
        finite = [slot for slot in range(20) if slot != 3]
        mine, theirs = mine.float()[finite], theirs.float()[finite]
        # A rotation that was rounded differently may move a number to the next code, an eighth away.
        torch.testing.assert_close(mine, theirs, rtol=0.13 if has_rope else 0, atol=0.02 if has_rope else 0)
