"""Quantizes a weight to 8 or 4 bits: the forms "int8" and "int4" of `packed_forms.py`.

Shape legend: T tokens, I inputs, O outputs; U units of a row, K blocks of 32 outputs.

A weight is its code times a bfloat16 scale, which an output has for all inputs (int8) or for each 32 (int4).
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.packed_blocks import PackedBlocks
from kernels.arguments.packed_forms import BLOCK, FORMS
from kernels.dispatch import call

Bits = Literal[4, 8]

ROWS_AT_ONCE = 8192
"""Outputs that torch quantizes at a time, which bounds its memory."""


def quantize(weight_OI: Tensor, bits: Bits, largest_O: Tensor | None = None) -> PackedBlocks:
    """Returns the weight rounded to this number of bits; its values are finite. Every kernel makes the same codes.

    With 8 bits `weight_OI` may have a part of the inputs: then `largest_O` is each output's largest magnitude over all.
    """
    assert largest_O is None or (largest_O.shape, largest_O.dtype) == (weight_OI.shape[:1], weight_OI.dtype)
    packed = call("quantize", weight_OI, quantize_reference, weight_OI.contiguous(), bits, largest_O)
    return PackedBlocks(packed, ((f"int{bits}", weight_OI.shape[0]),), weight_OI.shape[1])


def quantize_reference(weight_OI: Tensor, bits: Bits, largest_O: Tensor | None) -> Tensor:
    """Returns [K, U, bytes] a few outputs at a time, which bounds the memory."""
    least_O = weight_OI.new_zeros(len(weight_OI)) if largest_O is None else largest_O
    parts = zip(weight_OI.split(ROWS_AT_ONCE), least_O.split(ROWS_AT_ONCE), strict=True)
    return torch.cat([_quantize_rows(rows_OI, bits, least_O) for rows_OI, least_O in parts])


def sum_magnitudes(x_TI: Tensor) -> Tensor:
    """Returns the sum of magnitudes per token, float32 [T]; in the C kernels it does not depend on the batch."""
    return call("sum_magnitudes", x_TI, lambda x_TI: x_TI.float().abs().sum(1), x_TI.contiguous())


def _quantize_rows(rows_OI: Tensor, bits: Bits, least_O: Tensor) -> Tensor:
    """With 4 bits the largest magnitude becomes -8, which has no positive counterpart: the scale may be negative."""
    form = FORMS[f"int{bits}"].of_row(rows_OI.shape[1])
    num_inputs, num_filling = form.num_units(rows_OI.shape[1]) * form.groups * BLOCK, -rows_OI.shape[0] % BLOCK
    weight_OI = functional.pad(rows_OI.float(), (0, num_inputs - rows_OI.shape[1], 0, num_filling))
    weight_OUI = weight_OI.unflatten(1, (-1, form.groups * BLOCK))
    if bits == 4:
        scale_OU1, lowest = weight_OUI.gather(-1, weight_OUI.abs().argmax(-1, keepdim=True)) / -8, -8
    else:
        least_O11 = functional.pad(least_O.float(), (0, num_filling))[:, None, None]
        scale_OU1, lowest = weight_OUI.abs().amax(-1, keepdim=True).maximum(least_O11) / 127, -127
    scale_OU1 = scale_OU1.bfloat16()
    codes_OUI = weight_OUI / scale_OU1.float().where(scale_OU1 != 0, 1.0)
    codes_OUI = codes_OUI.round_().clamp_(lowest, 2 ** (bits - 1) - 1) + form.offset
    fours = codes_OUI.to(torch.uint8).unflatten(0, (-1, BLOCK)).unflatten(3, (-1, 4)).permute(0, 2, 3, 1, 4)
    if bits == 4:
        fours = fours[:, :, :4] | fours[:, :, 4:] << 4
    scales = scale_OU1.view(-1, BLOCK, scale_OU1.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat((scales, fours.flatten(2)), dim=2)
