"""The operations on a cache of 8-bit codes: C kernels and references, against what the codes stand for in float64."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch

from kernels.arguments.paged_kv import MAX_CODES, SCALE_DTYPE, PagedKV
from kernels.arguments.rows import HeadNorms, PrefillRows, RopeTables
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from kernels.operations.quantized_kv import gather_heads, quantize_heads
from kernels.operations.rotate_store import rotate_store, rotate_store_reference
from tests.kernels.cases import OPTIONS, PagedCase, Shape, assert_close, make_paged_case, with_codes
from tests.kernels.each_case import each_case

parts_of = attrgetter("keys", "values", "key_scales", "value_scales")

SHAPES = [Shape(12, 12, 64, 16), Shape(6, 2, 80, 4), Shape(5, 1, 128, 16), Shape(3, 3, 10, 1), Shape(8, 1, 512, 16)]
DTYPES = [torch.float32, torch.bfloat16]


def decode(case: PagedCase) -> torch.Tensor:
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    return out


def prefill(case: PagedCase) -> torch.Tensor:
    out = torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    return out


@each_case("dtype", DTYPES)
@each_case("shape", SHAPES)
def test_decode_attends_to_what_the_codes_stand_for(shape: Shape, dtype: torch.dtype) -> None:
    case = make_paged_case(shape, [1, 1, 1, 1], [0, 63, 64, 298], dtype, "cpu")
    case = with_codes(case, torch.int8)
    assert_close(decode(case), case.expected, dtype)


@each_case("dtype", DTYPES)
@each_case("shape", SHAPES)
def test_prefill_attends_to_what_the_codes_stand_for(shape: Shape, dtype: torch.dtype) -> None:
    case = with_codes(make_paged_case(shape, [1, 7, 66], [0, 129, 3], dtype, "cpu"), torch.int8)
    assert_close(prefill(case), case.expected, dtype)


@each_case("code_dtype", MAX_CODES)
@each_case("options", [{"window": 1}, {"window": 17}, *OPTIONS.values()])
@each_case("dtype", DTYPES)
def test_options_of_attention(dtype: torch.dtype, options: dict[str, Any], code_dtype: torch.dtype) -> None:
    shape = Shape(6, 2, 64, 16)
    case = with_codes(make_paged_case(shape, [1, 1, 1, 1], [0, 63, 64, 298], dtype, "cpu", **options), code_dtype)
    assert_close(decode(case), case.expected, dtype)
    case = with_codes(make_paged_case(shape, [1, 7, 66], [0, 129, 3], dtype, "cpu", **options), code_dtype)
    assert_close(prefill(case), case.expected, dtype)


@each_case("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_next_to_rows_that_share_its_pages(backend: str, dtype: torch.dtype) -> None:
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of rows")
    case = with_codes(make_paged_case(Shape(6, 2, 64, 16), [1] * 4, [299, 130, 299, 20], dtype, "cpu"), torch.int8)
    case.page_tables[2, :8] = case.page_tables[0, :8].clone()
    together = decode(case)
    for row in range(4):
        rows, alone = slice(row, row + 1), torch.full_like(case.query[:1], float("nan"))
        num_keys = case.context_lens[rows] + 1
        paged_decode(case.query[rows], case.cache, case.page_tables[rows], num_keys, case.options, alone)
        assert torch.equal(alone, together[rows])


@each_case("attend", [decode, prefill])
@each_case("dtype", DTYPES)
def test_a_row_that_is_not_finite_leaves_the_others_alone(
    attend: Callable[[PagedCase], torch.Tensor], dtype: torch.dtype
) -> None:
    case = with_codes(make_paged_case(Shape(4, 2, 16, 16), [1] * 3, [5, 40, 20], dtype, "cpu"), torch.int8)
    assert case.cache.key_scales is not None
    case.cache.key_scales[int(case.page_tables[1, 0]) * 16] = float("nan")
    out = attend(case)
    assert not bool(out[1].isfinite().any())
    assert_close(out[[0, 2]], case.expected[[0, 2]], dtype)


def empty_cache(num_kv_heads: int, head_dim: int, code_dtype: torch.dtype) -> PagedKV:
    codes = torch.full((2, 20, num_kv_heads, head_dim), 77).to(code_dtype)
    scales = torch.full((2, 20, num_kv_heads), float("nan"), dtype=SCALE_DTYPE)
    return PagedKV(codes[0], codes[1], 4, scales[0], scales[1])


@each_case("has_rope", [True, False])
@each_case("dtype", DTYPES)
@each_case("shape", [(2, 1, 64), (9, 3, 96), (5, 1, 10)])
def test_storing_equals_its_reference(shape: tuple[int, int, int], has_rope: bool, dtype: torch.dtype) -> None:
    """Codes may differ by one where a rotation was rounded differently; without one they are the same."""
    num_heads, num_kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(head_dim)
    heads = torch.randn(4, num_heads + 2 * num_kv_heads, head_dim, generator=generator)
    heads *= 10 ** (6 * torch.rand(4, num_heads + 2 * num_kv_heads, 1, generator=generator) - 3)
    heads[3, num_heads:] = 0
    heads = heads.to(dtype)
    angles = torch.rand(40, head_dim // 2, generator=generator) * 6
    rope = RopeTables(angles.cos(), angles.sin()) if has_rope else None
    weights = torch.rand(2, head_dim, generator=generator).to(dtype)
    norms = HeadNorms(weights[0], weights[1], 1e-5) if has_rope else None
    positions, slots = torch.tensor([39, 0, 7, 2], dtype=torch.int32), torch.tensor([19, -1, 0, 6])
    cache, expected = (empty_cache(num_kv_heads, head_dim, torch.int8) for _ in range(2))
    expected_query = rotate_store_reference(heads.clone(), expected, rope, positions, slots, norms)
    assert_close(rotate_store(heads, cache, rope, positions, slots, norms), expected_query, dtype)
    written, others = [19, 0, 6], [slot for slot in range(20) if slot not in (19, 0, 6)]
    for mine, theirs in zip(parts_of(cache), parts_of(expected), strict=True):
        if not has_rope:
            assert torch.equal(mine[written], theirs[written])
        elif mine.dtype == torch.int8:
            assert int((mine[written].int() - theirs[written].int()).abs().max()) <= 1
        else:
            torch.testing.assert_close(mine[written], theirs[written], rtol=2**-7, atol=0)
        assert bool((mine[others] == 77 if mine.dtype == torch.int8 else mine[others].isnan()).all())


@each_case("code_dtype", MAX_CODES)
@each_case("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen(code_dtype: torch.dtype, value: float) -> None:
    """A step that has gone wrong must not look right after its K and V have been through 8 bits."""
    heads = torch.ones(1, 3, 16)
    heads[0, 1:, 5] = value
    cache = empty_cache(1, 16, code_dtype)
    rotate_store(heads, cache, None, torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
    assert cache.key_scales is not None
    assert cache.value_scales is not None
    assert not bool(cache.key_scales[0].isfinite().any() | cache.value_scales[0].isfinite().any())


@each_case(("code_dtype", "most"), [(torch.int8, 0.6 / 127), (torch.float8_e4m3fn, 0.07)])
def test_codes_are_near_the_numbers_whatever_their_size(code_dtype: torch.dtype, most: float, backend: str) -> None:
    if backend != "torch":
        pytest.skip("there is one form of it")
    x = (
        torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(0))
        * 10.0 ** torch.arange(-20, 30)[:, None, None]
    )
    codes, scales = quantize_heads(x, code_dtype)
    stored = gather_heads(codes, scales, torch.arange(50), torch.float32)
    assert float(((stored - x).abs() / x.abs().amax(-1, keepdim=True)).max()) < most
