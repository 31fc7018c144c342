"""A linear layer whose weight is in the block form of its file, or of 4-bit codes with a scale per 32 inputs.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, N groups of 32 inputs.

Weights are not rounded again (kernels/arguments/packed_blocks.py). Activations become codes of 8 bits with a
scale per token and group, and 127 is the largest magnitude. The integer sums of groups are exact.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.block_rows import row_bytes
from kernels.arguments.packed_blocks import (
    BF16,
    BLOCK,
    E8M0,
    F16,
    F32,
    FORMS,
    SCALE_BYTES,
    TABLES,
    PackedBlocks,
    PackedForm,
)
from kernels.dispatch import call
from kernels.operations.gelu import GeluKind
from kernels.operations.packed_linear import torch_linear

LEAST_MAGNITUDE = 1e-30
ROWS_AT_ONCE = 8192
MOST_SEGMENTS = 8
"""kernels/cpu/source/block_layout.h repeats it."""


def quantize_blocks(weight_OI: Tensor) -> PackedBlocks:
    """Returns the weight in the form "int4"; its values are finite. Every kernel makes the same codes."""
    packed = call("quantize", weight_OI, quantize_reference, weight_OI.contiguous(), 4, None)
    return PackedBlocks(packed, (("int4", weight_OI.shape[0]),), weight_OI.shape[1])


def quantize_reference(weight_OI: Tensor, _bits: int, _largest_O: Tensor | None) -> Tensor:
    """Returns [K, N, bytes] a few outputs at a time, which bounds the memory."""
    return torch.cat([_quantize_rows(rows_OI) for rows_OI in weight_OI.split(ROWS_AT_ONCE)])


def block_linear(
    x_TI: Tensor,
    weight: PackedBlocks,
    bias_O: Tensor | None,
    activation: GeluKind | None = None,
    out_TO: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], followed by the GELU that `activation` names.

    In the C kernels a token's outputs are the same bits alone and in any batch. The result may be written to `out_TO`;
    otherwise it is a new tensor.
    """
    assert x_TI.shape[1] == weight.num_inputs
    assert 0 < len(weight.segments) <= MOST_SEGMENTS
    assert bias_O is None or bias_O.dtype == x_TI.dtype
    return call("block_linear", x_TI, block_linear_reference, x_TI.contiguous(), weight, bias_O, activation, out_TO)


def block_linear_reference(
    x_TI: Tensor,
    weight: PackedBlocks,
    bias_O: Tensor | None,
    activation: GeluKind | None,
    _out_TO: Tensor | None = None,
) -> Tensor:
    rounded_TI = _round_activations(x_TI.float())
    return torch_linear(rounded_TI, unpack(weight), bias_O, activation).to(x_TI.dtype)


def look_up_rows(weight: PackedBlocks, row_T: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns these rows of the weight [T, I]."""
    out_TI = torch.empty(len(row_T), weight.num_inputs, dtype=dtype)
    return call("look_up_blocks", out_TI, _look_up_reference, weight, row_T, out_TI)


def pack_block_rows(weight: PackedBlocks, segment: int, first_row: int, rows: Tensor) -> None:
    """Sets rows of a segment from `first_row` on to `rows`: uint8 [R, bytes of a row], as a GGUF file holds them.

    Rows of the integer forms have per unit the scale (float32), the zero point (a byte), and codes as in Q4_0 or Q8_0,
    but unsigned. Only C kernels read packed blocks that way, so there must be one.
    """
    form, num_outputs = weight.segments[segment]
    assert rows.dtype == torch.uint8
    assert rows.is_contiguous()
    assert rows.shape[1] == row_bytes(form, weight.num_inputs)
    assert 0 <= first_row <= first_row + len(rows) <= num_outputs
    call("pack_blocks", torch.empty(0), _no_reference, weight, segment, first_row, rows)


def _no_reference(*_arguments: object) -> None:
    raise AssertionError("blocks are packed by C kernels alone")


def has_finite_scales(weight: PackedBlocks) -> bool:
    """True if no scale or minimum of a unit is NaN or infinite."""
    begin, is_finite = 0, True
    for name, num_outputs in weight.segments:
        form = FORMS[name]
        end = begin + form.num_bytes(num_outputs, weight.num_inputs)
        units = weight.stored.flatten()[begin:end].view(-1, form.unit_bytes)
        num_bytes = BLOCK * SCALE_BYTES[form.scale]
        is_finite &= bool(_numbers(units[:, :num_bytes], form.scale).isfinite().all())
        if form.has_minimum:
            is_finite &= bool(_numbers(units[:, num_bytes : num_bytes + 2 * BLOCK], F16).isfinite().all())
        begin = end
    return is_finite


def unpack(weight: PackedBlocks) -> Tensor:
    """Returns the weight in float32, [O, I]."""
    parts, begin = [], 0
    for name, num_outputs in weight.segments:
        form = FORMS[name]
        end = begin + form.num_bytes(num_outputs, weight.num_inputs)
        units = weight.stored.flatten()[begin:end].view(-1, -(-weight.num_inputs // form.unit_inputs), form.unit_bytes)
        parts.append(_unpack_units(form, units)[:num_outputs, : weight.num_inputs])
        begin = end
    return torch.cat(parts)


def _look_up_reference(weight: PackedBlocks, row_T: Tensor, out_TI: Tensor) -> Tensor:
    return out_TI.copy_(unpack(weight)[row_T.long()])


def _unpack_units(form: PackedForm, units: Tensor) -> Tensor:
    """Returns the values [O, I] of a segment's units, uint8 [K, units of a row, bytes]."""
    num_blocks, num_units, _ = units.shape
    header, groups = units.split((form.header_bytes, form.unit_bytes - form.header_bytes), dim=2)
    sizes = (BLOCK * SCALE_BYTES[form.scale], 2 * BLOCK * form.has_minimum, BLOCK * form.has_zero)
    scales, minima, zeros = header.split(sizes, dim=2)
    groups = groups.reshape(num_blocks, num_units, form.groups, -1)
    factors, codes = groups.split((form.factor_bytes, groups.shape[3] - form.factor_bytes), dim=3)
    scale = _numbers(scales, form.scale)[:, :, None, None]  # [K, units, groups, halves, 32]
    minimum = torch.zeros_like(scale)
    if form.has_minimum:
        minimum = _numbers(minima, F16)[:, :, None, None]
    if form.has_zero:
        minimum = -scale * zeros[:, :, None, None].float()
    if form.num_factors:
        by_half = factors.view(torch.int8).float().unflatten(3, (-1, form.num_factors, BLOCK))
        scale = scale * by_half[:, :, :, 0]
        minimum = -minimum * by_half[:, :, :, 1] if form.has_minimum else minimum
    values = _codes(form, codes).unflatten(4, (scale.shape[3], -1))  # [K, units, groups, 32, halves, inputs]
    values = (values - form.offset) * scale.transpose(3, 4)[..., None]
    if form.has_minimum or form.has_zero:
        values = values + minimum.transpose(3, 4)[..., None]
    return values.permute(0, 3, 1, 2, 4, 5).reshape(num_blocks * BLOCK, -1)


def _numbers(stored: Tensor, number_format: int) -> Tensor:
    stored = stored.contiguous()
    if number_format == E8M0:
        exponent = stored.int()
        return torch.where(exponent < 2, 0x200000 << exponent.clamp(max=1), (exponent - 1) << 23).view(torch.float32)
    return stored.view({F16: torch.float16, BF16: torch.bfloat16, F32: torch.float32}[number_format]).float()


def _codes(form: PackedForm, codes: Tensor) -> Tensor:
    """Returns codes in float32 [K, units, groups, 32 outputs, 32 inputs]."""
    fours = codes.unflatten(3, (-1, BLOCK, 4)).int()  # a group's words of four inputs
    lowest = fours[:, :, :, :4]
    values = fours if form.bits == 8 else torch.cat((lowest & 15, lowest >> 4), dim=3)
    if form.bits == 5:
        values = values | (fours[:, :, :, 4:] >> torch.arange(8).view(8, 1, 1) & 1) << 4
    if form.bits == 6:
        higher = fours[:, :, :, 4:].repeat_interleave(4, dim=3) >> (torch.arange(8) % 4 * 2).view(8, 1, 1)
        values = values | (higher & 3) << 4
    if form.table:
        values = torch.tensor(TABLES[form.table])[values] + form.offset
    return values.transpose(3, 4).flatten(4).float()


def _quantize_rows(rows_OI: Tensor) -> Tensor:
    """The largest magnitude of a group becomes -8, which has no positive counterpart: the scale may be negative."""
    num_inputs, num_filling = rows_OI.shape[1], -rows_OI.shape[0] % BLOCK
    weight_ONI = functional.pad(rows_OI.float(), (0, -num_inputs % BLOCK, 0, num_filling)).unflatten(1, (-1, BLOCK))
    scale_ON1 = (weight_ONI.gather(-1, weight_ONI.abs().argmax(-1, keepdim=True)) / -8).bfloat16()
    codes_ONI = (weight_ONI / scale_ON1.float().where(scale_ON1 != 0, 1.0)).round_().clamp_(-8, 7) + 8
    fours = codes_ONI.to(torch.uint8).unflatten(0, (-1, BLOCK)).unflatten(3, (8, 4)).permute(0, 2, 3, 1, 4)
    scales = scale_ON1.view(-1, BLOCK, scale_ON1.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat((scales, (fours[:, :, :4] | fours[:, :, 4:] << 4).flatten(2)), dim=2)


def _round_activations(x_TI: Tensor) -> Tensor:
    """Returns the activations rounded to their codes."""
    x_TNG = functional.pad(x_TI, (0, -x_TI.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    largest_TN1 = x_TNG.abs().amax(-1, keepdim=True)
    factor_TN1 = torch.where(largest_TN1 > LEAST_MAGNITUDE, 127 / largest_TN1, 0.0)
    scale_TN1 = torch.where(largest_TN1 > LEAST_MAGNITUDE, largest_TN1 / 127, 0.0)
    scale_TN1 = scale_TN1.where(largest_TN1.isfinite(), torch.nan)
    return ((x_TNG * factor_TN1).round() * scale_TN1).flatten(1)[:, : x_TI.shape[1]]
