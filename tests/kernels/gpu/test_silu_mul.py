from collections import Counter

import pytest
import torch

from kernels.operations.silu_mul import silu_mul, silu_mul_reference
from tests.kernels.cases import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (2, 7), (3, 1024), (1, 1537)])
def test_equals_its_reference(
    num_tokens: int, size: int, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    generator = torch.Generator().manual_seed(size)
    gate_up = (torch.randn(num_tokens, 2 * size, generator=generator) * 4).to(dtype).to(device)
    expected = silu_mul_reference(gate_up)
    assert_close(silu_mul(gate_up), expected, dtype)
    assert backend["silu_mul"] == 1


def test_large_gates_are_passed_or_shut(device: str) -> None:
    gate_up = torch.tensor([[-1e4, 1e4, -88.8, 2.0, 3.0, 5.0]], device=device)
    assert_close(silu_mul(gate_up), torch.tensor([[0.0, 3e4, 0.0]], device=device), torch.float32)
