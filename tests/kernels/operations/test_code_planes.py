import pytest
import torch
from torch import Tensor

from kernels.arguments.block_forms import FORMS, GGUF_FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.operations import code_planes
from kernels.operations.code_planes import dequantize_planes, take_outputs
from kernels.operations.dequantize_blocks import dequantize_blocks
from tests.kernels.each_case import each_case
from tests.kernels.gpu.plausible_blocks import make_planes, plausible_rows
from tests.kernels.operations.block_forms import random_blocks


def assert_same_bits(values: Tensor, expected: Tensor) -> None:
    assert torch.equal(values.contiguous().view(torch.int32), expected.contiguous().view(torch.int32))


@each_case("form", FORMS)
def test_planes_hold_the_blocks_exactly(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are laid out in several steps, and fill no span unless they must."""
    monkeypatch.setattr(code_planes, "ROWS_AT_ONCE", 4)
    num_inputs = 3 * FORMS[form].num_values
    if form not in GGUF_FORMS:
        rows = plausible_rows(form, 9, num_inputs)
    else:
        rows = BlockRows(random_blocks(form, 9, num_inputs, seed=1), form, num_inputs)
    planes, expected = make_planes(rows), dequantize_blocks(rows)
    assert_same_bits(dequantize_planes(planes), expected)
    output_T = torch.tensor([8, 0, 8])
    assert_same_bits(dequantize_planes(take_outputs(planes, output_T)), expected[output_T])
