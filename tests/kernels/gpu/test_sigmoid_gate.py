from collections import Counter

import pytest
import torch

from kernels.operations.sigmoid_gate import sigmoid_gate, sigmoid_gate_reference
from tests.kernels.cases import assert_close


@pytest.mark.parametrize(("size", "dtype"), [(1100, torch.float32), (13, torch.bfloat16), (384, torch.float16)])
def test_equals_its_reference(size: int, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """Rows of values and of the gate lie apart."""
    values, gate = torch.randn(2, 3, size + 9).to(device, dtype).unbind()
    before, expected = values.clone(), values[:, 4:-5].clone()
    sigmoid_gate_reference(expected, gate[:, 2:-7])
    sigmoid_gate(values[:, 4:-5], gate[:, 2:-7])
    assert backend["sigmoid_gate"] == 1
    assert_close(values[:, 4:-5], expected, dtype)
    for columns in (slice(4), slice(-5, None)):
        assert torch.equal(values[:, columns], before[:, columns])


def test_no_tokens_and_large_gates(device: str) -> None:
    assert sigmoid_gate(*torch.empty(2, 0, 8, device=device).unbind()).shape == (0, 8)
    values, gate = torch.full((1, 3), 2.0, device=device), torch.tensor([[-1e5, 1e5, 0.0]], device=device)
    assert_close(sigmoid_gate(values, gate), torch.tensor([[0.0, 2.0, 1.0]], device=device), torch.float32)
