import pytest
import torch
import transformers

from kernels.operations.relu_squared import relu_squared
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("size", [1, 13, 384])
def test_is_the_activation_of_transformers_in_place(dtype: torch.dtype, size: int, device: str) -> None:
    x = torch.randn(3, size, device=device).to(dtype)
    expected = transformers.activations.ACT2FN["relu2"](x.double())
    assert relu_squared(x) is x
    assert_close(x, expected, dtype)


def test_nan_and_infinities() -> None:
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), -1e30, 0.0]])
    assert relu_squared(x).isnan().tolist() == [[True, False, False, False, False]]
    assert x[0, 1:].tolist() == [float("inf"), 0.0, 0.0, 0.0]


def test_rows_that_lie_apart_are_refused() -> None:
    with pytest.raises(AssertionError):
        relu_squared(torch.ones(2, 4)[:, :3])
