"""The values of blocks as a GGUF file holds them, to the bit those of `gguf.quants.dequantize`.

Shape legend: O rows, I inputs, N blocks, V values of a block, G groups of a block, B bytes of a block.

A value is its code times the scale of its group, less the group's minimum if the form has minimums. Codes and most
scales are integers of 2 to 8 bits (`Integers`); the layouts are those of ggml's `ggml-common.h`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.arguments.block_rows import FLOAT_FORMS, FORMS, INTEGER_FORMS, BlockRows

NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
SIGN_BIT = 128
E4M3 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class Bits(NamedTuple):
    """Fields of bytes, from `first_byte` on, in stretches.

    With 4 bits, byte j of a stretch of 16 bytes holds value j in its low half and value j + 16 in its high one.
    """

    first_byte: int
    num_bits: int
    stretch: int


class Integers(NamedTuple):
    """Integers of a block: `high` above the bits of `low`, less `offset`, or an index of `table`.

    8 bits are signed; if they are stored unsigned, they are made signed.
    """

    low: Bits
    high: Bits | None = None
    offset: int = 0
    table: tuple[float, ...] | None = None
    is_unsigned: bool = False


class Scales(NamedTuple):
    """Scale and minimum of blocks [N, 1], and the factors of groups [N, G] that they are multiplied by; all float32.

    Without factors a block is one group.
    """

    scale: Tensor
    minimum: Tensor | None = None
    scale_factors: Tensor | None = None
    minimum_factors: Tensor | None = None


class Layout(NamedTuple):
    """What the bytes of a block mean."""

    codes: Integers
    read_scales: Callable[[Tensor], Scales]


def dequantize_blocks(rows: BlockRows) -> Tensor:
    """Returns the values, float32 [O, I]."""
    return dequantize_blocks_reference(rows)


def has_finite_scales(rows: BlockRows) -> bool:
    """True if no value is NaN or infinite."""
    _, num_bytes, halves = FORMS[rows.form]
    blocks_NB = rows.blocks.unflatten(1, (-1, num_bytes))
    numbers = (blocks_NB[..., begin : begin + 2].contiguous().view(torch.float16) for begin in halves)
    return all(bool(number_N.isfinite().all()) for number_N in numbers)


def dequantize_blocks_reference(rows: BlockRows) -> Tensor:
    blocks_NB, layout = _blocks_of(rows), LAYOUTS[rows.form]
    scale_NG, minimum_NG, scale_factors_NG, minimum_factors_NG = layout.read_scales(blocks_NB)
    scale_NG = _times(scale_NG, scale_factors_NG)
    codes_NV = _read_integers(blocks_NB, layout.codes, FORMS[rows.form].num_values)
    values_NGV = scale_NG[:, :, None] * codes_NV.unflatten(1, (scale_NG.shape[1], -1))
    if minimum_NG is not None:
        values_NGV -= _times(minimum_NG, minimum_factors_NG)[:, :, None]
    return values_NGV.view(rows.shape)


def split_blocks(rows: BlockRows) -> tuple[Tensor, Scales]:
    """Returns the codes as they are stored, uint8 [O, I], and the scales of all blocks."""
    blocks_NB, layout = _blocks_of(rows), LAYOUTS[rows.form]
    codes_NV = _read_codes(blocks_NB, layout.codes, FORMS[rows.form].num_values)
    return codes_NV.view(rows.shape), layout.read_scales(blocks_NB)


def _blocks_of(rows: BlockRows) -> Tensor:
    return rows.blocks.reshape(-1, FORMS[rows.form].num_bytes)


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
    return read_NV.float() - integers.offset if integers.low.num_bits < 8 else read_NV.view(torch.int8).float()


def _read_bits(blocks_NB: Tensor, bits: Bits, num_values: int) -> Tensor:
    """Returns the fields, uint8 [N, number of values]."""
    first_byte, num_bits, stretch = bits
    bytes_NS1 = blocks_NB[:, first_byte : first_byte + num_values * num_bits // 8].unflatten(1, (-1, 1, stretch))
    shifts = torch.arange(0, 8, num_bits, dtype=torch.uint8, device=blocks_NB.device)[:, None]
    return (bytes_NS1 >> shifts & 2**num_bits - 1).flatten(1)


def _single(blocks_NB: Tensor) -> Tensor:
    """Returns the float32 number at the beginning of each block, [N, 1]."""
    return blocks_NB[:, :4].clone(memory_format=torch.contiguous_format).view(torch.float32)


def _half(blocks_NB: Tensor, first_byte: int) -> Tensor:
    """Returns a float16 number of each block in float32, [N, 1]."""
    return blocks_NB[:, first_byte : first_byte + 2].contiguous().view(torch.float16).float()


def _scale_alone(blocks_NB: Tensor) -> Scales:
    return Scales(_half(blocks_NB, 0))


def _scale_and_minimum(blocks_NB: Tensor) -> Scales:
    return Scales(_half(blocks_NB, 0), -_half(blocks_NB, 2))


def _scale_and_zero(least_code: int) -> Callable[[Tensor], Scales]:
    """A float32 scale, and its product with a zero point: that is as exact as the product with a code."""

    def read(blocks_NB: Tensor) -> Scales:
        scale_N1 = _single(blocks_NB)
        return Scales(scale_N1, scale_N1 * (blocks_NB[:, 4:5].float() + least_code))

    return read


def _wide_scale(blocks_NB: Tensor) -> Scales:
    return Scales(_single(blocks_NB))


def _power_of_two(blocks_NB: Tensor) -> Scales:
    """The exponent of half a power of two: the codes of MXFP4 are doubled."""
    exponent_N1 = blocks_NB[:, :1].int()
    subnormal_N1 = 0x200000 << exponent_N1.clamp(max=1)
    return Scales(torch.where(exponent_N1 < 2, subnormal_N1, exponent_N1 - 1 << 23).view(torch.float32))


def _integer_scales(first_byte: int, integers: Integers, num_groups: int) -> Callable[[Tensor], Scales]:
    """Integers times the float16 number at `first_byte`."""

    def read(blocks_NB: Tensor) -> Scales:
        return Scales(_half(blocks_NB, first_byte), None, _read_integers(blocks_NB, integers, num_groups))

    return read


def _four_bit_scales(blocks_NB: Tensor) -> Scales:
    """Q2_K: of 16 bytes, the low halves are scales and the high ones minimums."""
    scale_NG, minimum_NG = _read_integers(blocks_NB, Integers(Bits(0, 4, 16)), 32).chunk(2, dim=1)
    return Scales(_half(blocks_NB, 80), _half(blocks_NB, 82), scale_NG, minimum_NG)


def _six_bit_scales(blocks_NB: Tensor) -> Scales:
    """Q4_K and Q5_K: 8 bytes hold 4 scales and 4 minimums in their low 6 bits.

    Their high 2 bits belong to 4 more of each, whose low 4 bits are in the next 4 bytes.
    """
    first_N8, last_N4 = blocks_NB[:, 4:12], blocks_NB[:, 12:16]
    last_N8 = torch.cat((last_N4 & 15, last_N4 >> 4), dim=1) | first_N8 >> 2 & 48
    scale_N4, minimum_N4 = (first_N8 & 63).float().chunk(2, dim=1)
    more_scale_N4, more_minimum_N4 = last_N8.float().chunk(2, dim=1)
    scale_NG, minimum_NG = torch.cat((scale_N4, more_scale_N4), dim=1), torch.cat((minimum_N4, more_minimum_N4), dim=1)
    return Scales(_half(blocks_NB, 0), _half(blocks_NB, 2), scale_NG, minimum_NG)


LAYOUTS = {
    **{
        form: Layout(Integers(Bits(5, 8, 32), is_unsigned=True), _scale_and_zero(-SIGN_BIT))
        if form.startswith("I8")
        else Layout(Integers(Bits(5, 4, 16)), _scale_and_zero(0))
        for form in INTEGER_FORMS
    },
    **dict.fromkeys(FLOAT_FORMS, Layout(Integers(Bits(4, 8, 32), table=E4M3), _wide_scale)),
    "Q4_0": Layout(Integers(Bits(2, 4, 16), offset=8), _scale_alone),
    "Q4_1": Layout(Integers(Bits(4, 4, 16)), _scale_and_minimum),
    "Q5_0": Layout(Integers(Bits(6, 4, 16), Bits(2, 1, 1), offset=16), _scale_alone),
    "Q5_1": Layout(Integers(Bits(8, 4, 16), Bits(4, 1, 1)), _scale_and_minimum),
    "Q8_0": Layout(Integers(Bits(2, 8, 32)), _scale_alone),
    "IQ4_NL": Layout(Integers(Bits(2, 4, 16), table=NON_LINEAR), _scale_alone),
    "MXFP4": Layout(Integers(Bits(1, 4, 16), table=DOUBLED_E2M1), _power_of_two),
    "Q2_K": Layout(Integers(Bits(16, 2, 32)), _four_bit_scales),
    "Q3_K": Layout(
        Integers(Bits(32, 2, 32), Bits(0, 1, 32), offset=4),
        _integer_scales(108, Integers(Bits(96, 4, 8), Bits(104, 2, 4), offset=32), 16),
    ),
    "Q4_K": Layout(Integers(Bits(16, 4, 32)), _six_bit_scales),
    "Q5_K": Layout(Integers(Bits(48, 4, 32), Bits(16, 1, 32)), _six_bit_scales),
    "Q6_K": Layout(
        Integers(Bits(0, 4, 64), Bits(128, 2, 32), offset=32), _integer_scales(208, Integers(Bits(192, 8, 16)), 16)
    ),
    "IQ4_XS": Layout(
        Integers(Bits(8, 4, 16), table=NON_LINEAR),
        _integer_scales(0, Integers(Bits(4, 4, 1), Bits(2, 2, 1), offset=32), 8),
    ),
}
"""By the name of the form."""
