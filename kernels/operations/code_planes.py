"""Lays out rows of quantized blocks in planes, and returns the values of planes.

Shape legend: O outputs, I inputs (P: padded to whole spans), W words of codes of an output, G groups of inputs,
S scales of an output, N blocks.

The bytes of blocks are not aligned: a block of Q4_0 has 18 of them. In planes a GPU reads 16 bytes at a time.
"""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.block_forms import DOUBLED_E2M1, FORMS, NumberFormat
from kernels.arguments.block_rows import BlockRows
from kernels.arguments.code_planes import FIELDS, CodePlanes, PlaneForm
from kernels.operations.dequantize_blocks import split_blocks
from kernels.operations.quantize_rows import quantize_rows

ROWS_AT_ONCE = 4096
"""Outputs that are laid out at a time, which bounds the memory that it takes."""

ALIGNMENT = 128
"""The address of each plane is a multiple of it, in bytes."""

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
"""By the bits of a code."""

SCALES = {
    NumberFormat.F16: torch.float16,
    NumberFormat.E8M0: torch.bfloat16,
    NumberFormat.F32: torch.float32,
}
"""What holds the scales of each number format exactly."""


@cache
def plane_form(name: str) -> PlaneForm:
    """Returns what follows from the layout of the form's blocks."""
    form = FORMS[name]
    low, high, offset, table, _, _ = form.codes
    has_factors, has_minimums = form.factors is not None, form.minimum_byte is not None
    return PlaneForm(
        low.num_bits,
        0 if high is None else high.num_bits,
        offset,
        has_table=table is not None,
        group=form.group,
        groups_a_scale=form.num_values // form.group,
        has_scale_factors=has_factors,
        has_minimums=has_minimums or form.zero_byte is not None,
        has_minimum_factors=has_factors and has_minimums,
        is_fp4=table is DOUBLED_E2M1,
    )


def num_plane_bytes(name: str, num_outputs: int, num_inputs: int) -> int:
    """Returns the bytes of all planes of a form; they lie in one tensor."""
    return sum(_num_bytes(dtype, shape) for dtype, shape in _list_planes(name, num_outputs, num_inputs))


def view_planes(stored: Tensor, name: str, num_outputs: int, num_inputs: int) -> CodePlanes:
    """Returns the planes of a form that lie in `stored`, uint8 of `num_plane_bytes`."""
    first, planes = 0, list[Tensor | None]()
    for dtype, shape in _list_planes(name, num_outputs, num_inputs):
        num_elements = shape[0] * shape[1]
        plane = stored[first : first + num_elements * dtype.itemsize].view(dtype).view(shape)
        planes.append(plane if num_elements else None)
        first += _num_bytes(dtype, shape)
    low, high, scales, scale_factors, minimums, minimum_factors = planes
    assert low is not None
    assert scales is not None
    form = plane_form(name)
    table = torch.tensor(FORMS[name].codes.table, dtype=torch.bfloat16) if form.has_table else None
    table = None if table is None else table.to(stored.device)
    return CodePlanes(low, high, scales, scale_factors, minimums, minimum_factors, table, form, num_inputs)


def set_planes(planes: CodePlanes, first_output: int, rows: BlockRows) -> None:
    """Sets the outputs from `first_output` on; the rows may be on another device, and go to the planes' first."""
    form = planes.form
    num_padding = planes.num_spans * FIELDS * form.group - planes.num_inputs
    for first in range(0, len(rows), ROWS_AT_ONCE):
        blocks = rows.blocks[first : first + ROWS_AT_ONCE].to(planes.low.device)
        outputs = slice(first_output + first, first_output + first + len(blocks))
        codes_OI, scales = split_blocks(BlockRows(blocks, rows.form, rows.num_inputs))
        codes_OP = functional.pad(codes_OI, (0, num_padding))
        _set_codes(planes.low, outputs, codes_OP, form.low_bits, 0, form.group)
        if planes.high is not None:
            _set_codes(planes.high, outputs, codes_OP, form.high_bits, form.low_bits, form.group)
        for plane, values in (
            (planes.scales, scales.scale),
            (planes.scale_factors, scales.scale_factors),
            (planes.minimums, scales.minimum),
            (planes.minimum_factors, scales.minimum_factors),
        ):
            if plane is not None and values is not None:
                filled_OG = values.reshape(len(blocks), -1)
                plane[:, outputs] = functional.pad(filled_OG, (0, len(plane) - filled_OG.shape[1])).T.to(plane.dtype)


def quantize_planes(planes: CodePlanes, values_OI: Tensor, largest_O: Tensor | None) -> None:
    """Sets all outputs of a float8 form to these values, rounded with one scale per output: its largest magnitude, or
    that in `largest_O` if it is larger, becomes the largest code."""
    for first in range(0, len(values_OI), ROWS_AT_ONCE):
        outputs = slice(first, first + ROWS_AT_ONCE)
        least_O = None if largest_O is None else largest_O[outputs]
        planes.low[outputs], planes.scales[:, outputs] = quantize_rows(values_OI[outputs], planes.low.shape[1], least_O)


def take_outputs(planes: CodePlanes, output_T: Tensor) -> CodePlanes:
    """Returns the planes of these outputs alone, in this order."""

    def take(plane: Tensor | None, dim: int) -> Tensor | None:
        return None if plane is None else plane.index_select(dim, output_T)

    scales = planes.scales.index_select(1, output_T)
    factors, minimums = take(planes.scale_factors, 1), take(planes.minimums, 1)
    minimum_factors = take(planes.minimum_factors, 1)
    low, high = planes.low.index_select(0, output_T), take(planes.high, 0)
    return CodePlanes(
        low, high, scales, factors, minimums, minimum_factors, planes.table, planes.form, planes.num_inputs
    )


def dequantize_planes(planes: CodePlanes) -> Tensor:
    """Returns the values, float32 [O, I]."""
    form = planes.form
    codes_OP = _read_codes(planes.low, form.low_bits, form.group)
    if planes.high is not None:
        codes_OP = codes_OP | _read_codes(planes.high, form.high_bits, form.group) << form.low_bits
    codes_OP = codes_OP.float() - form.offset if planes.table is None else planes.table[codes_OP].float()
    values_OGV = codes_OP.view(len(codes_OP), -1, form.group)
    values_OGV *= _of_groups(planes.scales, planes.scale_factors, form.groups_a_scale)
    if planes.minimums is not None:
        values_OGV -= _of_groups(planes.minimums, planes.minimum_factors, form.groups_a_scale)
    return values_OGV.flatten(1)[:, : planes.num_inputs]


def _list_planes(name: str, num_outputs: int, num_inputs: int) -> Iterator[tuple[torch.dtype, tuple[int, int]]]:
    """Yields dtype and shape of each plane in the order of `CodePlanes`; a plane that the form lacks is empty."""
    form = plane_form(name)
    num_groups = -(-num_inputs // (FIELDS * form.group)) * FIELDS
    num_words, num_scales = num_groups * form.group // FIELDS, num_groups // form.groups_a_scale
    scale_dtype = SCALES[FORMS[name].scale.format]
    if form.low_bits < 8:
        yield WORDS[form.low_bits], (num_outputs, num_words)
    else:
        yield torch.float8_e4m3fn if FORMS[name].codes.is_float8 else torch.int8, (num_outputs, num_groups * form.group)
    yield WORDS.get(form.high_bits, torch.int8), (num_outputs if form.high_bits else 0, num_words)
    yield scale_dtype, (num_scales, num_outputs)
    yield torch.int8, (num_groups if form.has_scale_factors else 0, num_outputs)
    yield scale_dtype, (num_scales if form.has_minimums else 0, num_outputs)
    yield torch.int8, (num_groups if form.has_minimum_factors else 0, num_outputs)


def _num_bytes(dtype: torch.dtype, shape: tuple[int, int]) -> int:
    return -(-shape[0] * shape[1] * dtype.itemsize // ALIGNMENT) * ALIGNMENT


def _set_codes(plane: Tensor, outputs: slice, codes_OP: Tensor, num_bits: int, shift: int, group: int) -> None:
    if num_bits == 8:
        plane.view(torch.uint8)[outputs] = codes_OP
        return
    fields_OSFW = (codes_OP >> shift & 2**num_bits - 1).view(len(codes_OP), -1, FIELDS, group)
    words = torch.zeros_like(fields_OSFW[:, :, 0], dtype=torch.int64)
    for field in range(FIELDS):
        words |= fields_OSFW[:, :, field].long() << num_bits * field
    plane[outputs] = words.flatten(1).to(plane.dtype)


def _read_codes(plane: Tensor, num_bits: int, group: int) -> Tensor:
    """Returns int32 [O, P], or codes of 8 bits as they are."""
    if num_bits == 8:
        return plane
    shifts = torch.arange(0, FIELDS * num_bits, num_bits, dtype=torch.int32, device=plane.device)[:, None]
    return (plane.int().view(len(plane), -1, 1, group) >> shifts & 2**num_bits - 1).flatten(1)


def _of_groups(of_scales: Tensor, factors: Tensor | None, groups_a_scale: int) -> Tensor:
    """Returns float32 [O, G, 1]."""
    of_groups = of_scales.float().repeat_interleave(groups_a_scale, dim=0)
    return (of_groups if factors is None else of_groups * factors.float()).T[:, :, None]
