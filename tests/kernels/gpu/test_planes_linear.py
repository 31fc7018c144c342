"""Products with weights in planes, and look-ups in them, compared with the values of the blocks themselves."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.arguments.block_rows import FORMS, BlockRows
from kernels.arguments.code_planes import CodePlanes
from kernels.operations.code_planes import make_planes
from kernels.operations.dequantize_blocks import dequantize_blocks_reference
from kernels.operations.planes_linear import look_up_planes, planes_linear
from tests.kernels.operations.block_forms import random_blocks

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative to the sum of the magnitudes of a product: a result is rounded once."""


def make_weight(form: str, num_outputs: int, num_inputs: int, device: str) -> tuple[CodePlanes, Tensor]:
    """Returns the planes of random blocks and their values in float64."""
    blocks = random_blocks(form, num_outputs, num_inputs, seed=num_inputs)
    if form == "MXFP4":
        blocks[:, :: FORMS[form].num_bytes] = 120 + blocks[:, :: FORMS[form].num_bytes] % 16
    rows = BlockRows(blocks, form, num_inputs)
    return make_planes(BlockRows(blocks.to(device), form, num_inputs)), dequantize_blocks_reference(rows).double()


def check_product(
    planes: CodePlanes, values_OI: Tensor, num_tokens: int, dtype: torch.dtype, device: str, has_bias: bool = False
) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    x_TI = torch.randn(num_tokens, planes.num_inputs, generator=generator).to(dtype)
    # Values of a form may be as large as float16 allows.
    x_TI = (x_TI / values_OI.abs().max().clamp(min=1)).to(dtype)
    bias_O = torch.randn(planes.num_outputs, generator=generator).to(dtype) if has_bias else None
    out_TO = planes_linear(x_TI.to(device), planes, None if bias_O is None else bias_O.to(device)).cpu()
    assert out_TO.dtype == dtype
    expected = x_TI.double() @ values_OI.T
    size = x_TI.double().abs() @ values_OI.abs().T
    if bias_O is not None:
        expected, size = expected + bias_O.double(), size + bias_O.double().abs()
    worst = ((out_TO.double() - expected).abs() / size).max()
    assert worst <= TOLERANCES[dtype]


@pytest.mark.parametrize("form", FORMS)
def test_few_tokens(form: str, device: str, backend: Counter[str]) -> None:
    """Neither outputs nor inputs fill their blocks."""
    num_inputs = 256 if FORMS[form].num_values == 256 else 288
    planes, values_OI = make_weight(form, 70, num_inputs, device)
    check_product(planes, values_OI, 3, torch.bfloat16, device)
    assert backend["planes_linear"] == 1
