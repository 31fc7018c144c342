"""A linear layer whose weight is float8_e4m3fn codes with scales, on a CPU.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, N chunks of 32, 64 or 128 inputs, P pairs.

A chunk has a scale per output. A kernel widens codes to bfloat16, multiplies activations of bfloat16, and scales each
chunk's sum in float32: neither is rounded.
"""

import torch
from torch import Tensor

from kernels.arguments.block_forms import FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.arguments.packed_fp8 import BLOCK, HALF, SCALE_BYTES, PackedFp8
from kernels.dispatch import call
from kernels.operations.gelu import GeluKind
from kernels.operations.packed_linear import torch_linear


def pack_fp8_rows(weight: PackedFp8, first_output: int, rows: BlockRows) -> None:
    """Sets the outputs from `first_output` on."""
    assert FORMS[rows.form].num_values == weight.chunk_inputs
    blocks_ONB = rows.blocks.unflatten(1, (-1, FORMS[rows.form].num_bytes))
    output_O = torch.arange(first_output, first_output + len(rows))
    scales, codes = weight.scales_and_codes
    scales[output_O // BLOCK, :, output_O % BLOCK] = blocks_ONB[..., :SCALE_BYTES]
    codes[output_O // BLOCK, :, :, output_O % BLOCK // HALF, output_O % HALF] = blocks_ONB[..., SCALE_BYTES:].unflatten(
        2, (-1, 2)
    )


def unpack_fp8(weight: PackedFp8) -> Tensor:
    """Returns the weight in float32, [O, I]."""
    scales, codes = weight.scales_and_codes
    scale_KNB1 = scales.contiguous().view(torch.float32)
    by_output = codes.contiguous().view(torch.float8_e4m3fn).float().flatten(3, 4).transpose(2, 3)
    values = by_output.flatten(3) * scale_KNB1
    return values.transpose(1, 2).flatten(2).flatten(0, 1)[: weight.num_outputs]


def fp8_linear(
    x_TI: Tensor,
    weight: PackedFp8,
    bias_O: Tensor | None,
    activation: GeluKind | None = None,
    out_TO: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], followed by the GELU that `activation` names.

    In the C kernel a token's outputs are the same bits alone and in any batch. The result may be written to `out_TO`;
    otherwise it is a new tensor.
    """
    assert x_TI.shape[1] == weight.num_inputs
    assert bias_O is None or bias_O.dtype == x_TI.dtype
    return call("fp8_linear", x_TI, fp8_linear_reference, x_TI.contiguous(), weight, bias_O, activation, out_TO)


def fp8_linear_reference(
    x_TI: Tensor,
    weight: PackedFp8,
    bias_O: Tensor | None,
    activation: GeluKind | None,
    _out_TO: Tensor | None = None,
) -> Tensor:
    return torch_linear(x_TI.float(), unpack_fp8(weight), bias_O, activation).to(x_TI.dtype)
