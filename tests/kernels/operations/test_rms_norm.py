import pytest
import torch

from kernels.operations.rms_norm import rms_norm
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def expect(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case("size", [1, 7, 128, 769])
def test_equals_the_formula(dtype: torch.dtype, size: int, device: str) -> None:
    x, weight = torch.randn(5, size, device=device).to(dtype), torch.randn(size, device=device).to(dtype)
    before = x.clone()
    assert_close(rms_norm(x, weight, 1e-5), expect(x, weight, 1e-5), dtype)
    assert torch.equal(x, before)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case("num_tokens", [5, 103])  # one by one, and some at a time
def test_adds_the_update_to_the_residual_stream(dtype: torch.dtype, device: str, num_tokens: int) -> None:
    x, update = torch.randn(2, num_tokens, 33, device=device).to(dtype)
    weight = torch.randn(33, device=device).to(dtype)
    total = x + update
    assert_close(rms_norm(x, weight, 1e-6, update), expect(total, weight, 1e-6), dtype)
    assert torch.equal(x, total)


def test_a_sum_beyond_float16_does_not_overflow() -> None:
    x = torch.full((1, 64), 300.0, dtype=torch.float16)
    assert_close(rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-6), torch.ones(1, 64), torch.float16)


def test_no_rows_give_no_rows() -> None:
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6, torch.empty(0, 8)).shape == (0, 8)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
def test_rows_may_lie_apart(dtype: torch.dtype, device: str) -> None:
    whole, weight = torch.randn(5, 40, device=device).to(dtype), torch.randn(17, device=device).to(dtype)
    before, part = whole.clone(), whole[:, 9:26]
    expected = expect(part, weight, 1e-5)
    assert_close(rms_norm(part, weight, 1e-5, None, part), expected, dtype)
    for columns in (slice(9), slice(26, None)):
        assert torch.equal(whole[:, columns], before[:, columns])
