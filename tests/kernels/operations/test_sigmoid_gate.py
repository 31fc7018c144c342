import pytest
import torch

from kernels.operations.sigmoid_gate import sigmoid_gate
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("size", [1, 13, 384])
def test_equals_the_formula(dtype: torch.dtype, size: int, device: str) -> None:
    values, gates = torch.randn(3, size).to(device, dtype), (torch.randn(3, 2 * size) * 4).to(device, dtype)
    gate = gates[:, size // 2 : size // 2 + size]
    expected = values.double() / (1 + (-gate.double()).exp())
    assert sigmoid_gate(values, gate) is values
    assert_close(values, expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_values_may_lie_apart(device: str) -> None:
    whole, gate = torch.randn(3, 40).to(device), torch.randn(3, 17).to(device)
    before, values = whole.clone(), whole[:, 9:26]
    expected = before[:, 9:26].double() * gate.double().sigmoid()
    assert_close(sigmoid_gate(values, gate), expected, torch.float32)
    for columns in (slice(9), slice(26, None)):
        assert torch.equal(whole[:, columns], before[:, columns])


def test_large_gates_open_and_shut() -> None:
    values = sigmoid_gate(torch.full((1, 3), 2.0), torch.tensor([[-1e5, 1e5, 0.0]]))
    assert_close(values, torch.tensor([[0.0, 2.0, 1.0]]), torch.float32)


def test_refuses_other_sizes() -> None:
    with pytest.raises(AssertionError):
        sigmoid_gate(torch.ones(1, 4), torch.ones(1, 3))
