import pytest
import torch
from torch.nn import functional

from kernels.operations.gelu_mul import gelu_mul
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("size", [1, 13, 384])
def test_equals_the_formula(dtype: torch.dtype, size: int, device: str) -> None:
    gate_up = torch.randn(3, 2 * size, device=device).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(gelu_mul(gate_up), functional.gelu(gate, approximate="tanh") * up, dtype)


def test_refuses_an_odd_size() -> None:
    with pytest.raises(AssertionError):
        gelu_mul(torch.ones(1, 3))
