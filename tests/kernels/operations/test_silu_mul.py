import pytest
import torch

from kernels.operations.silu_mul import silu_mul
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("size", [1, 13, 384])
def test_equals_the_formula(dtype: torch.dtype, size: int, device: str) -> None:
    gate_up = torch.randn(3, 2 * size, device=device).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate / (1 + (-gate).exp()) * up
    assert_close(silu_mul(gate_up), expected, dtype)


def test_refuses_an_odd_size() -> None:
    with pytest.raises(AssertionError):
        silu_mul(torch.ones(1, 3))
