import pytest
import torch

from kernels.operations.layer_norm import layer_norm
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def expect(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    centered = x.double() - x.double().mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double() + bias.double()


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case("size", [1, 7, 48, 769])
def test_equals_the_formula(dtype: torch.dtype, size: int, device: str) -> None:
    x, (weight, bias) = torch.randn(5, size, device=device).to(dtype), torch.randn(2, size, device=device).to(dtype)
    before = x.clone()
    assert_close(layer_norm(x, weight, bias, 1e-5), expect(x, weight, bias, 1e-5), dtype)
    assert torch.equal(x, before)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case("num_tokens", [5, 103])  # one by one, and some at a time
def test_adds_the_update_to_the_residual_stream(dtype: torch.dtype, device: str, num_tokens: int) -> None:
    x, update = torch.randn(2, num_tokens, 33, device=device).to(dtype)
    weight, bias = torch.randn(2, 33, device=device).to(dtype)
    total = x + update
    assert_close(layer_norm(x, weight, bias, 1e-5, update), expect(total, weight, bias, 1e-5), dtype)
    assert torch.equal(x, total)
