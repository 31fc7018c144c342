from collections import Counter

import pytest
import torch

from kernels.arguments.paged_kv import InPlace, PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.operations.rotate_store import rotate_store, rotate_store_reference
from tests.kernels.cases import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(2, 1, 64), (4, 4, 80), (9, 3, 96), (8, 1, 128), (12, 12, 6), (5, 1, 10), (1, 1, 1)]
MODES = [(True, False), (True, True), (False, False)]
"""With a rotation, and with norms before it."""
CASES = [
    (shape, *mode, DTYPES[(index + place) % 3])
    for index, shape in enumerate(SHAPES)
    for place, mode in enumerate(MODES)
    if shape[2] % 2 == 0 or not mode[0]  # a rotation pairs the elements of a head
]
"""Every shape in every mode and in every dtype, and every mode in every dtype."""
NUM_POSITIONS = 40


@pytest.mark.parametrize(("shape", "has_rope", "has_norms", "dtype"), CASES, ids=str)
def test_equals_its_reference(
    shape: tuple[int, int, int],
    has_rope: bool,
    has_norms: bool,
    dtype: torch.dtype,
    device: str,
    backend: Counter[str],
) -> None:
    num_heads, num_kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(head_dim)
    heads = torch.randn(3, num_heads + 2 * num_kv_heads, head_dim, generator=generator).to(dtype).to(device)
    angles = (torch.rand(NUM_POSITIONS, head_dim // 2, generator=generator) * 6).to(device)
    weights = torch.randn(2, head_dim, generator=generator).to(dtype).to(device)
    positions = torch.tensor([39, 0, 7], dtype=torch.int32, device=device)
    slots = torch.tensor([19, -1, 0], device=device)
    rope = RopeTables(angles.cos(), angles.sin()) if has_rope else None
    norms = HeadNorms(weights[0], weights[1], 1e-2) if has_norms else None
    caches = torch.full((2, 2, 20, num_kv_heads, head_dim), float("nan"), dtype=dtype, device=device)
    cache, expected = PagedKV(caches[0, 0], caches[0, 1], 4), PagedKV(caches[1, 0], caches[1, 1], 4)
    expected_query = rotate_store_reference(heads.clone(), expected, rope, positions, slots, norms)
    query = rotate_store(heads, cache, rope, positions, slots, norms)
    assert backend["rotate_store"] == 1
    assert query.data_ptr() == heads.data_ptr()
    assert_close(query, expected_query, dtype)
    for mine, theirs in ((cache.keys, expected.keys), (cache.values, expected.values)):
        assert_close(mine[[19, 0]], theirs[[19, 0]], dtype)
        assert bool(mine[1:19].isnan().all())
    assert torch.equal(cache.values[[19, 0]], expected.values[[19, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_have_a_norm_and_queries_may_be_alone(dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """With the widest heads."""
    heads = torch.randn(3, 8 + 2 * 2, 512, generator=torch.Generator().manual_seed(3)).to(dtype).to(device)
    angles = (torch.rand(NUM_POSITIONS, 256, generator=torch.Generator().manual_seed(4)) * 6).to(device)
    weights = torch.randn(3, 512, generator=torch.Generator().manual_seed(5)).to(dtype).to(device)
    positions = torch.tensor([39, 0, 7], dtype=torch.int32, device=device)
    slots, rope = torch.tensor([19, -1, 0], device=device), RopeTables(angles.cos(), angles.sin())
    norms = HeadNorms(weights[0], weights[1], 1e-2, weights[2])
    caches = torch.zeros(2, 2, 20, 2, 512, dtype=dtype, device=device)
    expected = rotate_store_reference(
        heads.clone(), PagedKV(caches[0, 0], caches[0, 1], 4), rope, positions, slots, norms
    )
    alone = heads[:, :8].clone()
    query = rotate_store(heads, PagedKV(caches[1, 0], caches[1, 1], 4), rope, positions, slots, norms)
    assert_close(query, expected, dtype)
    assert_close(caches[1], caches[0], dtype)
    assert_close(rotate_store(alone, None, rope, positions, slots, norms), expected, dtype)
    assert backend["rotate_store"] == 2


@pytest.mark.parametrize("has_norms", [True, False])
def test_without_a_cache_keys_and_values_stay_in_place(has_norms: bool, device: str, backend: Counter[str]) -> None:
    heads = torch.randn(3, 4 + 2 * 2, 64, generator=torch.Generator().manual_seed(3)).to(device)
    angles = (torch.rand(NUM_POSITIONS, 32, generator=torch.Generator().manual_seed(4)) * 6).to(device)
    weights = torch.randn(3, 64, generator=torch.Generator().manual_seed(5)).to(device)
    positions = torch.tensor([39, 0, 7], dtype=torch.int32, device=device)
    rope, norms = RopeTables(angles.cos(), angles.sin()), HeadNorms(weights[0], weights[1], 1e-2, weights[2])
    arguments = InPlace(2), rope, positions, torch.full((3,), -1, device=device), norms if has_norms else None
    expected = heads.clone()
    rotate_store_reference(expected, *arguments)
    rotate_store(heads, *arguments)
    assert_close(heads, expected, torch.float32)
    assert backend["rotate_store"] == 1


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_a_slot_far_back_is_written(page_size: int, device: str) -> None:
    heads = torch.randn(1, 3, 8).to(device)
    caches = torch.zeros(2, 64, 1, 8, device=device)
    slots, positions = torch.tensor([63], device=device), torch.zeros(1, dtype=torch.int32, device=device)
    rotate_store(heads, PagedKV(caches[0], caches[1], page_size), None, positions, slots)
    assert torch.equal(caches[:, 63], heads[0, 1:, None])
    assert not bool(caches[:, :63].any())


def test_no_tokens_store_nothing(device: str) -> None:
    caches = torch.full((2, 20, 2, 8), float("nan"), device=device)
    nothing = torch.zeros(0, dtype=torch.int32, device=device)
    query = rotate_store(
        torch.zeros(0, 8, 8, device=device), PagedKV(caches[0], caches[1], 4), None, nothing, nothing.long()
    )
    assert query.shape == (0, 4, 8)
    assert bool(caches.isnan().all())


@pytest.mark.parametrize(
    ("shape", "num_pairs", "query_row", "has_norms", "dtype"),
    [
        ((4, 2, 128), 48, 20, False, torch.bfloat16),
        ((4, 2, 64), 16, 0, True, torch.float32),
        ((3, 3, 10), 3, 20, True, torch.float16),
    ],
    ids=str,
)
def test_a_part_of_each_head_is_rotated(
    shape: tuple[int, int, int],
    num_pairs: int,
    query_row: int,
    has_norms: bool,
    dtype: torch.dtype,
    device: str,
    backend: Counter[str],
) -> None:
    num_heads, num_kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(head_dim)
    heads = torch.randn(3, num_heads + 2 * num_kv_heads, head_dim, generator=generator).to(dtype).to(device)
    angles = (torch.rand(NUM_POSITIONS, num_pairs, generator=generator) * 6).to(device)
    tables = RopeTables(angles.cos(), angles.sin(), query_row)
    weights = torch.randn(2, head_dim, generator=generator).to(dtype).to(device)
    norms = HeadNorms(weights[0], weights[1], 1e-2) if has_norms else None
    positions = torch.tensor([19, 0, 7], dtype=torch.int32, device=device)
    slots = torch.tensor([3, -1, 0], device=device)
    keys = torch.zeros(2, 4, num_kv_heads, head_dim, dtype=dtype, device=device)
    values = torch.zeros_like(keys)
    expected = rotate_store_reference(heads.clone(), PagedKV(keys[0], values[0], 4), tables, positions, slots, norms)
    query = rotate_store(heads, PagedKV(keys[1], values[1], 4), tables, positions, slots, norms)
    assert_close(query, expected, dtype)
    assert_close(keys[1], keys[0], dtype)
    assert torch.equal(values[1], values[0])
    assert backend["rotate_store"] == 1
