import pytest
import torch

from kernels.arguments.paged_kv import SCALE_DTYPE, InPlace, PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.operations.rotate_store import rotate_store, rotate_store_reference
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case
from tests.naming import naming

SHAPES = [(8, 1, 512), (2, 1, 64), (4, 4, 80), (9, 3, 96), (8, 1, 128), (3, 3, 6), (5, 1, 10)]
NUM_POSITIONS = 40


def make_inputs(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: str, num_pairs: int | None = None
) -> tuple[torch.Tensor, RopeTables, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(head_dim)
    heads = torch.randn(5, num_heads + 2 * num_kv_heads, head_dim, generator=generator).to(dtype)
    angles = torch.rand(NUM_POSITIONS, num_pairs or head_dim // 2, generator=generator) * 6
    positions = torch.tensor([39, 0, 7, 7, 1], dtype=torch.int32)
    slots = torch.tensor([19, -1, 0, 4, 7])
    tables = RopeTables(angles.cos().to(device), angles.sin().to(device))
    return heads.to(device), tables, positions.to(device), slots.to(device)


def empty_cache(num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: str) -> PagedKV:
    if dtype == torch.int8:
        caches = torch.zeros(2, 20, num_kv_heads, head_dim, dtype=dtype, device=device)
        scales = torch.zeros(2, 20, num_kv_heads, dtype=SCALE_DTYPE, device=device)
        return PagedKV(caches[0], caches[1], 4, scales[0], scales[1])
    caches = torch.full((2, 20, num_kv_heads, head_dim), float("nan"), dtype=dtype, device=device)
    return PagedKV(caches[0], caches[1], 4)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("has_rope", [True, False])
def test_equals_its_reference(has_rope: bool, dtype: torch.dtype, device: str) -> None:
    for shape in SHAPES:
        with naming(shape=shape):
            check(shape, dtype, device, has_rope=has_rope)


def check(shape: tuple[int, int, int], dtype: torch.dtype, device: str, *, has_rope: bool) -> None:
    """Compares the rotated queries and what is stored with those of the reference."""
    num_heads, num_kv_heads, head_dim = shape
    heads, tables, positions, slots = make_inputs(*shape, dtype, device)
    cache, expected = (empty_cache(num_kv_heads, head_dim, dtype, device) for _ in range(2))
    rope = tables if has_rope else None
    expected_query = rotate_store_reference(heads.clone(), expected, rope, positions, slots)
    query = rotate_store(heads, cache, rope, positions, slots)
    assert query.data_ptr() == heads.data_ptr()
    assert query.shape == (5, num_heads, head_dim)
    assert_close(query, expected_query, dtype)
    written = slots[slots >= 0]
    for mine, theirs in ((cache.keys, expected.keys), (cache.values, expected.values)):
        assert_close(mine[written], theirs[written], dtype)
        untouched = [slot for slot in range(20) if slot not in written.tolist()]
        assert bool(mine[untouched].isnan().all())


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("shape", [(6, 2, 64), (16, 8, 128), (4, 2, 80), (3, 3, 6), (5, 1, 10)])
def test_with_norms_equals_its_reference(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    _, num_kv_heads, head_dim = shape
    heads, tables, positions, slots = make_inputs(*shape, dtype, device)
    weights = torch.randn(2, head_dim, generator=torch.Generator().manual_seed(2)).to(dtype).to(device)
    norms = HeadNorms(weights[0], weights[1], 1e-2)
    cache, expected = (empty_cache(num_kv_heads, head_dim, dtype, device) for _ in range(2))
    expected_query = rotate_store_reference(heads.clone(), expected, tables, positions, slots, norms)
    query = rotate_store(heads, cache, tables, positions, slots, norms)
    assert_close(query, expected_query, dtype)
    written = slots[slots >= 0]
    assert_close(cache.keys[written], expected.keys[written], dtype)
    assert torch.equal(cache.values[written], expected.values[written])


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16])
@each_case("has_norms", [True, False])
@each_case("query_row", [0, NUM_POSITIONS // 2])
def test_a_part_of_each_head_is_rotated(query_row: int, has_norms: bool, dtype: torch.dtype, device: str) -> None:
    """Also with tables of their own for queries; the rest of a head is only normalized."""
    for head_dim, num_pairs in [(128, 48), (96, 24), (64, 16), (10, 3), (6, 1)]:
        with naming(head_dim=head_dim, num_pairs=num_pairs):
            check_part(head_dim, num_pairs, query_row, dtype, device, has_norms=has_norms)


def check_part(
    head_dim: int, num_pairs: int, query_row: int, dtype: torch.dtype, device: str, *, has_norms: bool
) -> None:
    """Compares queries and keys of which `num_pairs` pairs are rotated with those of the reference."""
    heads, tables, _, slots = make_inputs(4, 2, head_dim, dtype, device, num_pairs)
    tables = tables._replace(query_row=query_row)
    positions = torch.tensor([19, 0, 7, 7, 1], dtype=torch.int32, device=device)
    weights = torch.randn(2, head_dim, generator=torch.Generator().manual_seed(2)).to(dtype).to(device)
    norms = HeadNorms(weights[0], weights[1], 1e-2) if has_norms else None
    cache, expected = (empty_cache(2, head_dim, dtype, device) for _ in range(2))
    expected_query = rotate_store_reference(heads.clone(), expected, tables, positions, slots, norms)
    untouched = heads[:, :4, 2 * num_pairs :].clone()
    query = rotate_store(heads, cache, tables, positions, slots, norms)
    assert_close(query, expected_query, dtype)
    assert_close(cache.keys[slots[slots >= 0]], expected.keys[slots[slots >= 0]], dtype)
    if not has_norms:
        assert torch.equal(query[..., 2 * num_pairs :], untouched)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16])
@each_case("codes", [None, torch.int8])
def test_values_have_a_norm_without_rotation(dtype: torch.dtype, codes: torch.dtype | None, device: str) -> None:
    heads, tables, positions, slots = make_inputs(4, 2, 64, dtype, device)
    weights = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).to(dtype).to(device)
    norms = HeadNorms(weights[0], weights[1], 1e-2, weights[2])
    cache, expected = (empty_cache(2, 64, codes or dtype, device) for _ in range(2))
    query = rotate_store(heads.clone(), cache, tables, positions, slots, norms)
    assert_close(query, rotate_store_reference(heads.clone(), expected, tables, positions, slots, norms), dtype)
    written = slots[slots >= 0]
    values = heads[slots >= 0, 6:].float()
    normed = values * (values.square().mean(-1, keepdim=True) + 1e-2).rsqrt() * weights[2].float()
    scales = 1.0 if cache.value_scales is None else cache.value_scales[written, :, None].float()
    bound = 0.05 if codes else 1e-6 if dtype == torch.float32 else 0.03
    assert float((cache.values[written].float() * scales - normed).abs().max()) < bound
    assert_close(cache.keys[written].float(), expected.keys[written].float(), dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_alone_are_those_with_keys(dtype: torch.dtype, device: str) -> None:
    heads, tables, positions, slots = make_inputs(4, 2, 64, dtype, device)
    weights = torch.randn(2, 64, generator=torch.Generator().manual_seed(2)).to(dtype).to(device)
    norms, alone = HeadNorms(weights[0], weights[1], 1e-2), heads[:, :4].clone()
    expected = rotate_store(heads, empty_cache(2, 64, dtype, device), tables, positions, slots, norms)
    query = rotate_store(alone, None, tables, positions, slots, norms)
    assert query.data_ptr() == alone.data_ptr()
    assert torch.equal(query, expected)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16])
@each_case("has_norms", [True, False])
def test_without_a_cache_keys_and_values_stay_in_place(has_norms: bool, dtype: torch.dtype, device: str) -> None:
    """They have the bits that a cache would get, and slots are not read."""
    heads, tables, positions, slots = make_inputs(4, 2, 64, dtype, device)
    weights = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).to(dtype).to(device)
    norms = HeadNorms(weights[0], weights[1], 1e-2, weights[2]) if has_norms else None
    cache, every = empty_cache(2, 64, dtype, device), torch.arange(5, device=device)
    expected = rotate_store(heads.clone(), cache, tables, positions, every, norms)
    query = rotate_store(heads, InPlace(2), tables, positions, torch.full_like(slots, -1), norms)
    assert query.data_ptr() == heads.data_ptr()
    assert torch.equal(heads, torch.cat((expected, cache.keys[:5], cache.values[:5]), 1))


@pytest.mark.parametrize("device", DEVICES)
def test_no_tokens_store_nothing(device: str) -> None:
    cache = empty_cache(2, 8, torch.float32, device)
    nothing = torch.empty(0, dtype=torch.int32, device=device)
    query = rotate_store(torch.empty(0, 8, 8, device=device), cache, None, nothing, nothing.long())
    assert query.shape == (0, 4, 8)
    assert bool(cache.keys.isnan().all())


def test_refuses_slots_of_another_type() -> None:
    heads, tables, positions, slots = make_inputs(2, 1, 8, torch.float32, "cpu")
    with pytest.raises(AssertionError):
        rotate_store(heads, empty_cache(1, 8, torch.float32, "cpu"), tables, positions, slots.int())
