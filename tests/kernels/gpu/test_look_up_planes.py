"""Embeddings in planes, compared with the values of the blocks themselves."""

from collections import Counter

import pytest
import torch

from kernels.arguments.block_forms import FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.gpu.look_up_planes import dequantize_slice
from kernels.operations.dequantize_blocks import dequantize_blocks
from kernels.operations.planes_linear import look_up_planes
from tests.kernels.gpu.plausible_blocks import make_planes, plausible_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_tokens(form: str, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """More rows than a program has, one of them twice."""
    num_inputs = FORMS[form].num_values + 256
    rows = plausible_rows(form, 20, num_inputs)
    planes = make_planes(BlockRows(rows.blocks.to(device), form, num_inputs))
    row_T = torch.tensor([19, 0, 7, 7, *range(15)], dtype=torch.int32)
    found_TI = look_up_planes(planes, row_T.to(device), dtype)
    assert found_TI.dtype == dtype
    expected_TI = dequantize_blocks(rows)[row_T]
    # A GPU multiplies and subtracts in one operation, with one rounding.
    atol = float(expected_TI.abs().max()) * torch.finfo(dtype).eps
    torch.testing.assert_close(found_TI.cpu(), expected_TI.to(dtype), rtol=0, atol=atol)
    assert backend["look_up_planes"] == 1


def test_neighbouring_outputs(device: str) -> None:
    rows = plausible_rows("Q4_0", 40, 96)
    planes = make_planes(BlockRows(rows.blocks.to(device), "Q4_0", 96))
    out_RI = torch.full((21, 96), float("nan"), device=device)
    dequantize_slice(planes, 17, out_RI)
    assert torch.equal(out_RI.cpu(), dequantize_blocks(rows)[17:38])
