from collections import Counter

import pytest
import torch

from kernels.operations.gelu_mul import gelu_mul, gelu_mul_reference
from tests.kernels.cases import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_tokens", "size"), [(2, 7), (1, 1537)])
def test_equals_its_reference(
    num_tokens: int, size: int, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    generator = torch.Generator().manual_seed(size)
    gate_up = (torch.randn(num_tokens, 2 * size, generator=generator) * 4).to(dtype).to(device)
    expected = gelu_mul_reference(gate_up)
    assert_close(gelu_mul(gate_up), expected, dtype)
    assert backend["gelu_mul"] == 1
