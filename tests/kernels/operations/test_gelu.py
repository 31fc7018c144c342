import math

import pytest
import torch

from kernels.operations.gelu import GeluKind, gelu
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("kind", ["tanh", "exact"])
def test_equals_the_formula(dtype: torch.dtype, kind: GeluKind, device: str) -> None:
    x = torch.linspace(-8, 8, 401, device=device).view(1, -1).to(dtype)
    wide = x.double()
    if kind == "tanh":
        expected = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    else:
        expected = 0.5 * wide * (1 + torch.erf(wide / math.sqrt(2)))
    assert_close(gelu(x, kind), expected, dtype)


def test_the_kinds_differ() -> None:
    x = torch.tensor([[2.0]])
    assert abs(float(gelu(x, "tanh") - gelu(x, "exact"))) > 5e-5
