"""Lays out rows of quantized blocks in planes, and returns the values of planes.

Shape legend: O outputs, I inputs (P: padded to whole spans), W words of codes of an output, G groups of inputs,
S scales of an output, N blocks.

The bytes of blocks are not aligned: a block of Q4_0 has 18 of them. In planes a GPU reads 16 bytes at a time.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.block_rows import FORMS, INTEGER_FORMS, BlockRows
from kernels.arguments.code_planes import FIELDS, CodePlanes
from kernels.operations.dequantize_blocks import LAYOUTS, split_blocks

ROWS_AT_ONCE = 4096
"""Outputs that are laid out at a time, which bounds the memory that it takes."""

GROUP = 32
"""Inputs of a group of a form whose groups have no factors."""

ALIGNMENT = 128
"""Of each plane, in bytes."""

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int8}
"""By the bits of a code; codes of 8 bits are no words."""

SCALES = {"MXFP4": torch.bfloat16} | dict.fromkeys(("F8", *INTEGER_FORMS), torch.float32)
"""What holds the scales of a form exactly, if not float16."""


class PlaneForm(NamedTuple):
    """Which planes a form has; the names are those of `CodePlanes`."""

    low_bits: int
    high_bits: int
    low_dtype: torch.dtype
    offset: int
    table: tuple[float, ...] | None
    group: int
    groups_a_scale: int
    scale_dtype: torch.dtype
    has_minimums: bool
    minimums_are_scales: bool
    has_scale_factors: bool
    has_minimum_factors: bool


@cache
def plane_form(form: str) -> PlaneForm:
    """Returns what follows from the layout of the form's blocks: the scales of a block tell how many groups it has."""
    (low, high, offset, table, _), read_scales = LAYOUTS[form]
    scales = read_scales(torch.zeros(1, FORMS[form].num_bytes, dtype=torch.uint8))
    factors, is_float = scales.scale_factors, low.num_bits == 8 and table is not None
    num_groups = FORMS[form].num_values // GROUP if factors is None else factors.shape[1]
    return PlaneForm(
        low.num_bits,
        0 if high is None else high.num_bits,
        torch.float8_e4m3fn if is_float else WORDS[low.num_bits],
        offset,
        None if is_float else table,
        FORMS[form].num_values // num_groups,
        num_groups,
        SCALES.get(form, torch.float16),
        scales.minimum is not None and scales.minimum is not scales.scale,
        scales.minimum is scales.scale,
        factors is not None,
        scales.minimum_factors is not None,
    )


def num_plane_bytes(form: str, num_outputs: int, num_inputs: int) -> int:
    """Returns the bytes of all planes; they lie in one tensor."""
    return sum(_num_bytes(dtype, shape) for dtype, shape in _list_planes(plane_form(form), num_outputs, num_inputs))


def view_planes(stored: Tensor, form: str, num_outputs: int, num_inputs: int) -> CodePlanes:
    """Returns the planes that lie in `stored`, uint8 of `num_plane_bytes`."""
    kind, first, planes = plane_form(form), 0, list[Tensor | None]()
    for dtype, shape in _list_planes(kind, num_outputs, num_inputs):
        num_elements = shape[0] * shape[1]
        plane = stored[first : first + num_elements * dtype.itemsize].view(dtype).view(shape)
        planes.append(plane if num_elements else None)
        first += _num_bytes(dtype, shape)
    low, high, scales, scale_factors, minimums, minimum_factors = planes
    assert low is not None
    assert scales is not None
    table = None if kind.table is None else torch.tensor(kind.table, dtype=torch.bfloat16, device=stored.device)
    return CodePlanes(
        *(low, high, scales, scale_factors, scales if kind.minimums_are_scales else minimums, minimum_factors, table),
        *(kind.offset, kind.group, kind.low_bits, kind.high_bits, num_inputs),
    )


def set_planes(planes: CodePlanes, first_output: int, rows: BlockRows) -> None:
    """Sets the outputs from `first_output` on; the rows may be on another device, and go to the planes' first."""
    kind = plane_form(rows.form)
    for first in range(0, len(rows.blocks), ROWS_AT_ONCE):
        blocks = rows.blocks[first : first + ROWS_AT_ONCE].to(planes.low.device)
        outputs = slice(first_output + first, first_output + first + len(blocks))
        codes_OI, scales = split_blocks(BlockRows(blocks, rows.form, rows.num_inputs))
        codes_OP = functional.pad(codes_OI, (0, planes.num_spans * planes.span - planes.num_inputs))
        _set_codes(planes.low, outputs, codes_OP, kind.low_bits, 0, kind.group)
        if planes.high is not None:
            _set_codes(planes.high, outputs, codes_OP, kind.high_bits, kind.low_bits, kind.group)
        for plane, values in (
            (planes.scales, scales.scale),
            (planes.scale_factors, scales.scale_factors),
            (planes.minimums, scales.minimum),
            (planes.minimum_factors, scales.minimum_factors),
        ):
            if plane is not None and values is not None:
                filled_OG = values.reshape(len(blocks), -1)
                plane[:, outputs] = functional.pad(filled_OG, (0, len(plane) - filled_OG.shape[1])).T.to(plane.dtype)


def make_planes(rows: BlockRows) -> CodePlanes:
    """Returns the planes of whole rows, on the rows' device."""
    num_outputs = len(rows.blocks)
    num_bytes = num_plane_bytes(rows.form, num_outputs, rows.num_inputs)
    stored = torch.empty(num_bytes, dtype=torch.uint8, device=rows.blocks.device)
    planes = view_planes(stored, rows.form, num_outputs, rows.num_inputs)
    set_planes(planes, 0, rows)
    return planes


def take_outputs(planes: CodePlanes, output_T: Tensor) -> CodePlanes:
    """Returns the planes of these outputs alone, in this order."""

    def take(plane: Tensor | None, dim: int) -> Tensor | None:
        return None if plane is None else plane.index_select(dim, output_T)

    scales = planes.scales.index_select(1, output_T)
    columns = (take(plane, 1) for plane in (planes.scale_factors, planes.minimums, planes.minimum_factors))
    low, high = planes.low.index_select(0, output_T), take(planes.high, 0)
    rest = planes.table, planes.offset, planes.group, planes.low_bits, planes.high_bits, planes.num_inputs
    return CodePlanes(low, high, scales, *columns, *rest)


def dequantize_planes(planes: CodePlanes) -> Tensor:
    """Returns the values, float32 [O, I]."""
    codes_OP = _read_codes(planes.low, planes.low_bits, planes.group)
    if planes.high is not None:
        codes_OP = codes_OP | _read_codes(planes.high, planes.high_bits, planes.group) << planes.low_bits
    codes_OP = codes_OP.float() - planes.offset if planes.table is None else planes.table[codes_OP].float()
    values_OGV = codes_OP.view(len(codes_OP), -1, planes.group)
    values_OGV *= _of_groups(planes.scales, planes.scale_factors, planes.groups_a_scale)
    if planes.minimums is not None:
        values_OGV -= _of_groups(planes.minimums, planes.minimum_factors, planes.groups_a_scale)
    return values_OGV.flatten(1)[:, : planes.num_inputs]


def _list_planes(kind: PlaneForm, num_outputs: int, num_inputs: int) -> Iterator[tuple[torch.dtype, tuple[int, int]]]:
    """Returns dtype and shape of each plane in the order of `CodePlanes`; a plane that the form lacks is empty."""
    span = FIELDS * kind.group
    num_groups = -(-num_inputs // span) * FIELDS
    num_words, num_scales = num_groups * kind.group // FIELDS, num_groups // kind.groups_a_scale
    yield kind.low_dtype, (num_outputs, num_groups * kind.group if kind.low_bits == 8 else num_words)
    yield WORDS.get(kind.high_bits, torch.int8), (num_outputs if kind.high_bits else 0, num_words)
    yield kind.scale_dtype, (num_scales, num_outputs)
    yield torch.int8, (num_groups if kind.has_scale_factors else 0, num_outputs)
    yield kind.scale_dtype, (num_scales if kind.has_minimums else 0, num_outputs)
    yield torch.int8, (num_groups if kind.has_minimum_factors else 0, num_outputs)


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
