"""A linear layer whose weight is in the block forms of its file, or quantized (packed_forms.py).

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, N groups of 32 inputs.

Weights are not rounded again. Activations become codes of 8 bits. A group of 32 has a scale, and 127 is its largest
magnitude. With a form that has scales per token, a magnitude of `STEPS` is the mean of the token's, and
activations far above it get wider codes, as in LLM.int8() (Dettmers et al. 2022, section 3.2). The integer sums, of
groups or of whole rows, are exact.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.block_forms import TABLES, NumberFormat
from kernels.arguments.block_rows import row_bytes
from kernels.arguments.packed_blocks import PackedBlocks, packed_bytes
from kernels.arguments.packed_forms import BLOCK, FORMS, PackedForm
from kernels.dispatch import call
from kernels.operations.dequantize_blocks import read_numbers
from kernels.operations.gelu import GeluKind
from kernels.operations.packed_linear import torch_linear

STEPS = 24.0
"""kernels/cpu/source/quantized_codes.h repeats it."""

LEAST_MAGNITUDE = 1e-30
MAX_SEGMENTS = 8
"""kernels/cpu/source/block_layout.h repeats it."""


def block_linear(
    x_TI: Tensor,
    weight: PackedBlocks,
    bias_O: Tensor | None,
    activation: GeluKind | None = None,
    out_TO: Tensor | None = None,
    mean_T: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], followed by the GELU that `activation` names.

    In the C kernels a token's outputs are the same bits alone and in any batch. The result may be written to `out_TO`;
    otherwise it is a new tensor. With scales per token `x_TI` may have a part of the inputs: then `mean_T` (float32) is
    the mean magnitude of each token over all.
    """
    assert mean_T is None or (mean_T.shape, mean_T.dtype) == (x_TI.shape[:1], torch.float32)
    assert x_TI.shape[1] == weight.num_inputs
    assert 0 < len(weight.segments) <= MAX_SEGMENTS
    assert bias_O is None or bias_O.dtype == x_TI.dtype
    arguments = x_TI.contiguous(), weight, bias_O, activation, out_TO, mean_T
    return call("block_linear", x_TI, block_linear_reference, *arguments)


def block_linear_reference(
    x_TI: Tensor,
    weight: PackedBlocks,
    bias_O: Tensor | None,
    activation: GeluKind | None,
    _out_TO: Tensor | None = None,
    mean_T: Tensor | None = None,
) -> Tensor:
    has_token_scales = FORMS[weight.segments[0][0]].has_token_scales
    rounded_TI = _round_tokens(x_TI.float(), mean_T) if has_token_scales else _round_groups(x_TI.float())
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
    for form, units in _split_segments(weight):
        scales, minima, _ = units[..., : form.header_bytes].split(_header_sizes(form), dim=2)
        numbers = [read_numbers(scales, form.scale)]
        if form.has_minimum:
            numbers.append(read_numbers(minima, NumberFormat.F16))
        if not all(bool(read.isfinite().all()) for read in numbers):
            return False
    return True


def unpack(weight: PackedBlocks) -> Tensor:
    """Returns the weight in float32, [O, I]."""
    parts = [
        _unpack_units(form, units)[:num_outputs, : weight.num_inputs]
        for (form, units), (_, num_outputs) in zip(_split_segments(weight), weight.segments, strict=True)
    ]
    return torch.cat(parts)


def _split_segments(weight: PackedBlocks) -> list[tuple[PackedForm, Tensor]]:
    """Returns the form and the units of each segment, uint8 [K, units of a row, bytes]."""
    sizes = [packed_bytes((segment,), weight.num_inputs) for segment in weight.segments]
    forms = [FORMS[name].of_row(weight.num_inputs) for name, _ in weight.segments]
    return [
        (form, stored.view(-1, form.num_units(weight.num_inputs), form.unit_bytes))
        for form, stored in zip(forms, weight.stored.flatten().split(sizes), strict=True)
    ]


def _header_sizes(form: PackedForm) -> tuple[int, int, int]:
    """Returns the bytes of a unit's scales, minimums and zero points."""
    return BLOCK * form.scale.num_bytes, 2 * BLOCK * form.has_minimum, BLOCK * form.has_zero


def _look_up_reference(weight: PackedBlocks, row_T: Tensor, out_TI: Tensor) -> Tensor:
    return out_TI.copy_(unpack(weight)[row_T.long()])


def _unpack_units(form: PackedForm, units: Tensor) -> Tensor:
    """Returns the values [O, I] of a segment's units, uint8 [K, units of a row, bytes]."""
    num_blocks, num_units, _ = units.shape
    header, groups = units.split((form.header_bytes, form.unit_bytes - form.header_bytes), dim=2)
    scales, minima, zeros = header.split(_header_sizes(form), dim=2)
    groups = groups.reshape(num_blocks, num_units, form.groups, -1)
    factors, codes = groups.split((form.factor_bytes, groups.shape[3] - form.factor_bytes), dim=3)
    scale = read_numbers(scales, form.scale)[:, :, None, None]  # [K, units, groups, halves, 32]
    minimum = torch.zeros_like(scale)
    if form.has_minimum:
        minimum = read_numbers(minima, NumberFormat.F16)[:, :, None, None]
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
        values = torch.tensor(TABLES[form.table - 1])[values] + form.offset
    return values.transpose(3, 4).flatten(4).float()


def _round_tokens(x_TI: Tensor, mean_T: Tensor | None) -> Tensor:
    """Returns the activations rounded to their codes, with a scale per token."""
    mean_T1 = (x_TI.abs().sum(1) / x_TI.shape[1] if mean_T is None else mean_T)[:, None]
    factor_T1 = torch.where(mean_T1 > LEAST_MAGNITUDE, STEPS / mean_T1, 0.0)
    scale_T1 = torch.where(mean_T1 > LEAST_MAGNITUDE, mean_T1 / STEPS, 0.0)
    return (x_TI * factor_T1).round() * scale_T1.where(mean_T1.isfinite(), torch.nan)


def _round_groups(x_TI: Tensor) -> Tensor:
    """Returns the activations rounded to their codes, with a scale per group."""
    x_TNG = functional.pad(x_TI, (0, -x_TI.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    largest_TN1 = x_TNG.abs().amax(-1, keepdim=True)
    factor_TN1 = torch.where(largest_TN1 > LEAST_MAGNITUDE, 127 / largest_TN1, 0.0)
    scale_TN1 = torch.where(largest_TN1 > LEAST_MAGNITUDE, largest_TN1 / 127, 0.0)
    scale_TN1 = scale_TN1.where(largest_TN1.isfinite(), torch.nan)
    return ((x_TNG * factor_TN1).round() * scale_TN1).flatten(1)[:, : x_TI.shape[1]]
