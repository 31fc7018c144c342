import pytest
import torch

from kernels.operations.qk_norm import qk_norm_reference
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(2, 1, 64), (4, 4, 80), (16, 8, 128), (3, 3, 6), (5, 1, 10), (1, 1, 1)]
EPS = 1e-2


def make_inputs(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(head_dim)
    heads = torch.randn(5, num_heads + 2 * num_kv_heads, head_dim, generator=generator)
    weights = torch.randn(2, head_dim, generator=generator).to(dtype).to(device)
    return heads.to(dtype).to(device), weights[0], weights[1]


def expect(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case("shape", SHAPES)
def test_equals_the_formula(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    num_heads, num_kv_heads, _ = shape
    heads, query_weight, key_weight = make_inputs(*shape, dtype, device)
    before = heads.clone()
    qk_norm_reference(heads, query_weight, key_weight, num_heads, EPS)
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    assert_close(query, expect(before[:, :num_heads], query_weight), dtype)
    assert_close(key, expect(before[:, num_heads : num_heads + num_kv_heads], key_weight), dtype)
    assert torch.equal(value, before[:, num_heads + num_kv_heads :])
