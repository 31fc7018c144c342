import pytest
import torch

from kernels.arguments.paged_kv import PagedKV
from kernels.operations.store_kv import store_kv
from tests.kernels.cases import DEVICES
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_writes_its_slots_and_no_other(device: str, dtype: torch.dtype) -> None:
    key, value = torch.randn(2, 5, 3, 10, device=device).to(dtype)
    caches = torch.full((2, 20, 3, 10), 7.0, dtype=dtype, device=device)
    slots = torch.tensor([19, -1, 0, 4, -1], device=device)
    store_kv(key, value, PagedKV(caches[0], caches[1], 4), slots)
    for cache, written in ((caches[0], key), (caches[1], value)):
        assert torch.equal(cache[[19, 0, 4]], written[[0, 2, 3]])
        untouched = [slot for slot in range(20) if slot not in (19, 0, 4)]
        assert bool((cache[untouched] == 7.0).all())


@pytest.mark.parametrize("device", DEVICES)
def test_takes_views_of_a_merged_projection(device: str) -> None:
    merged = torch.randn(4, 6, 8, device=device)
    _, key, value = merged.split((2, 2, 2), dim=1)
    caches = torch.zeros(2, 16, 2, 8, device=device)
    store_kv(key, value, PagedKV(caches[0], caches[1], 4), torch.arange(4, device=device) * 3)
    assert torch.equal(caches[0][::3][:4], key)
    assert torch.equal(caches[1][::3][:4], value)


@pytest.mark.parametrize("device", DEVICES)
def test_skipping_every_token_writes_nothing(device: str) -> None:
    caches = torch.zeros(2, 4, 1, 8, device=device)
    store_kv(
        *torch.ones(2, 3, 1, 8, device=device), PagedKV(caches[0], caches[1], 4), torch.full((3,), -1, device=device)
    )
    assert not bool(caches.any())


def test_refuses_slots_of_another_type() -> None:
    caches = torch.zeros(2, 4, 1, 8)
    with pytest.raises(AssertionError):
        store_kv(*torch.ones(2, 1, 1, 8), PagedKV(caches[0], caches[1], 4), torch.zeros(1, dtype=torch.int32))
