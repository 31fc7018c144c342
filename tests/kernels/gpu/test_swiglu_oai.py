from collections import Counter

import pytest
import torch

from kernels.operations.swiglu_oai import swiglu_oai, swiglu_oai_reference
from tests.kernels.cases import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_rows", "size"), [(2, 7), (1, 1537)])
def test_equals_its_reference(num_rows: int, size: int, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    generator = torch.Generator().manual_seed(size)
    gate_up = (torch.randn(num_rows, 2 * size, generator=generator) * 6).to(dtype)
    gate_up[0, :2], gate_up[0, size + 1] = torch.tensor([float("nan"), 1e4]), -1e4
    gate_up = gate_up.to(device)
    out = swiglu_oai(gate_up, 1.702, 7.0)
    assert bool(out[0, 0].isnan())
    assert_close(out[:, 1:], swiglu_oai_reference(gate_up, 1.702, 7.0)[:, 1:], dtype)
    assert backend["swiglu_oai"] == 1
