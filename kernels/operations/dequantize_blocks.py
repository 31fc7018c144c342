"""The values of blocks as a file holds them (block_forms.py), of GGUF's to the bit those of `gguf.quants.dequantize`.

Shape legend: O rows, I inputs, N blocks, V values of a block, G groups of a block, B bytes of a block.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.arguments.block_forms import FORMS, Bits, BlockForm, Integers, NumberFormat, SixBits
from kernels.arguments.block_rows import BlockRows

SIGN_BIT = 128
DTYPES = {NumberFormat.F16: torch.float16, NumberFormat.BF16: torch.bfloat16, NumberFormat.F32: torch.float32}


class Scales(NamedTuple):
    """Scale and minimum of blocks [N, 1], and the factors of groups [N, G] that they are multiplied by; all float32.

    Without factors a block is one group. The minimum is subtracted.
    """

    scale: Tensor
    minimum: Tensor | None = None
    scale_factors: Tensor | None = None
    minimum_factors: Tensor | None = None


def dequantize_blocks(rows: BlockRows) -> Tensor:
    """Returns the values, float32 [O, I]."""
    blocks_NB, form = _blocks_of(rows), FORMS[rows.form]
    scale_NG, minimum_NG, scale_factors_NG, minimum_factors_NG = read_scales(blocks_NB, form)
    scale_NG = _times(scale_NG, scale_factors_NG)
    codes_NV = _read_integers(blocks_NB, form.codes, form.num_values)
    values_NGV = scale_NG[:, :, None] * codes_NV.unflatten(1, (scale_NG.shape[1], -1))
    if minimum_NG is not None:
        values_NGV -= _times(minimum_NG, minimum_factors_NG)[:, :, None]
    return values_NGV.view(rows.shape)


def has_finite_scales(rows: BlockRows) -> bool:
    """True if no value is NaN or infinite."""
    blocks_NB = _blocks_of(rows)
    return all(
        bool(read_numbers(blocks_NB[:, begin : begin + 2], NumberFormat.F16).isfinite().all())
        for begin in FORMS[rows.form].halves
    )


def split_blocks(rows: BlockRows) -> tuple[Tensor, Scales]:
    """Returns the codes as they are stored, uint8 [O, I], and the scales of all blocks."""
    blocks_NB, form = _blocks_of(rows), FORMS[rows.form]
    return _read_codes(blocks_NB, form.codes, form.num_values).view(rows.shape), read_scales(blocks_NB, form)


def read_scales(blocks_NB: Tensor, form: BlockForm) -> Scales:
    scale_N1 = read_numbers(_bytes(blocks_NB, form.scale.first_byte, form.scale.format.num_bytes), form.scale.format)
    minimum_N1 = None
    if form.zero_byte is not None:
        least_code = -SIGN_BIT if form.codes.is_unsigned else 0
        minimum_N1 = scale_N1 * (_bytes(blocks_NB, form.zero_byte, 1).float() + least_code)
    if form.minimum_byte is not None:
        minimum_N1 = read_numbers(_bytes(blocks_NB, form.minimum_byte, 2), NumberFormat.F16)
        minimum_N1 = -minimum_N1 if form.factors is None else minimum_N1
    if form.factors is None:
        return Scales(scale_N1, minimum_N1)
    if isinstance(form.factors, SixBits):
        read = _read_six_bits(blocks_NB, form.factors)
    else:
        read = _read_integers(blocks_NB, form.factors, form.num_factors)
    scale_NG, *minimum_NG = read.chunk(1 if minimum_N1 is None else 2, dim=1)
    return Scales(scale_N1, minimum_N1, scale_NG, *minimum_NG)


def read_numbers(stored: Tensor, number_format: NumberFormat) -> Tensor:
    """Returns the numbers in these bytes in float32; the last dimension is that of the bytes."""
    if number_format == NumberFormat.E8M0:
        exponent = stored.int()
        return torch.where(exponent < 2, 0x200000 << exponent.clamp(max=1), exponent - 1 << 23).view(torch.float32)
    return stored.clone(memory_format=torch.contiguous_format).view(DTYPES[number_format]).float()


def _blocks_of(rows: BlockRows) -> Tensor:
    return rows.blocks.reshape(-1, FORMS[rows.form].num_bytes)


def _bytes(blocks_NB: Tensor, first_byte: int, num_bytes: int) -> Tensor:
    return blocks_NB[:, first_byte : first_byte + num_bytes]


def _times(of_block_N1: Tensor, factors_NG: Tensor | None) -> Tensor:
    return of_block_N1 if factors_NG is None else of_block_N1 * factors_NG


def _read_codes(blocks_NB: Tensor, integers: Integers, num_values: int) -> Tensor:
    """Returns them without offset and table, uint8 [N, number of values]."""
    read_NV = _read_bits(blocks_NB, integers.low, num_values)
    if integers.is_unsigned:
        return read_NV ^ SIGN_BIT
    if integers.high is None:
        return read_NV
    return read_NV | _read_bits(blocks_NB, integers.high, num_values) << integers.low.num_bits


def _read_integers(blocks_NB: Tensor, integers: Integers, num_values: int) -> Tensor:
    """Returns them in float32, [N, number of values]."""
    read_NV = _read_codes(blocks_NB, integers, num_values)
    if integers.table is not None:
        return torch.tensor(integers.table, dtype=torch.float32, device=blocks_NB.device)[read_NV.int()]
    if integers.is_float8:
        return read_NV.view(torch.float8_e4m3fn).float()
    return read_NV.float() - integers.offset if integers.low.num_bits < 8 else read_NV.view(torch.int8).float()


def _read_bits(blocks_NB: Tensor, bits: Bits, num_values: int) -> Tensor:
    """Returns the fields, uint8 [N, number of values]."""
    first_byte, num_bits, stretch = bits
    bytes_NS1 = _bytes(blocks_NB, first_byte, num_values * num_bits // 8).unflatten(1, (-1, 1, stretch))
    shifts = torch.arange(0, 8, num_bits, dtype=torch.uint8, device=blocks_NB.device)[:, None]
    return (bytes_NS1 >> shifts & 2**num_bits - 1).flatten(1)


def _read_six_bits(blocks_NB: Tensor, factors: SixBits) -> Tensor:
    """Returns the factors of scales, then those of minimums, in float32 [N, 16]."""
    first_N8, last_N4 = _bytes(blocks_NB, factors.first_byte, 8), _bytes(blocks_NB, factors.first_byte + 8, 4)
    last_N8 = torch.cat((last_N4 & 15, last_N4 >> 4), dim=1) | first_N8 >> 2 & 48
    first, last = (first_N8 & 63).unflatten(1, (2, 4)), last_N8.unflatten(1, (2, 4))
    return torch.cat((first, last), dim=2).flatten(1).float()
