from collections import Counter

import pytest
import torch

from kernels.operations.gelu import GeluKind, gelu, gelu_reference
from tests.kernels.cases import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["tanh", "exact"])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (3, 7), (2, 1537)])
def test_equals_its_reference(
    num_tokens: int, size: int, kind: GeluKind, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    x = torch.linspace(-9, 9, num_tokens * size).view(num_tokens, size).to(dtype).to(device)
    assert_close(gelu(x, kind), gelu_reference(x, kind), dtype)
    assert backend["gelu"] == 1
