"""The forms of weights in blocks, as files store them: GGUF's tensor types, integers and floats of 8 bits.

This is the only table of them. The number of bytes, the layout for C kernels (packed_forms.py) with its C header
(kernels/cpu/headers.py), and the planes for GPUs (kernels/operations/code_planes.py) follow from it. It does not import
torch, because the build reads it.
"""

from enum import IntEnum
from typing import NamedTuple


class NumberFormat(IntEnum):
    """The number format of a scale."""

    F16 = 0
    BF16 = 1
    F32 = 2
    E8M0 = 3
    """Half a power of two: the entries of `DOUBLED_E2M1` are doubled."""

    @property
    def num_bytes(self) -> int:
        return (2, 2, 4, 1)[self]


NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
TABLES = (NON_LINEAR, DOUBLED_E2M1)
"""The tables whose entries 4-bit codes stand for."""


class Bits(NamedTuple):
    """Fields of bytes, from `first_byte` on, in stretches.

    With 4 bits, byte j of a stretch of 16 bytes holds value j in its low half and value j + 16 in its high one.
    """

    first_byte: int
    num_bits: int
    stretch: int


class Integers(NamedTuple):
    """Integers of a block: `high` above the bits of `low`, less `offset`, or an index of `table`.

    8 bits are signed, or float8_e4m3fn; if they are stored unsigned, they are made signed.
    """

    low: Bits
    high: Bits | None = None
    offset: int = 0
    table: tuple[int, ...] | None = None
    is_unsigned: bool = False
    is_float8: bool = False


class SixBits(NamedTuple):
    """8 scale factors and 8 minimum factors of 6 bits in the 12 bytes of Q4_K and Q5_K.

    8 bytes hold 4 of each in their low 6 bits. Their high 2 bits belong to 4 more of each, whose low 4 bits are in the
    next 4 bytes.
    """

    first_byte: int


class Number(NamedTuple):
    format: NumberFormat
    first_byte: int


class BlockForm(NamedTuple):
    """The layout of a block, which holds neighbouring values of one row.

    A value is its code times the scale, plus the minimum. With factors, which are those of a group of values, it is the
    code times scale and factor, less minimum and factor.
    """

    num_values: int
    codes: Integers
    scale: Number = Number(NumberFormat.F16, 0)
    minimum_byte: int | None = None
    """A float16 number."""
    zero_byte: int | None = None
    """An unsigned zero point of 8 bits: the minimum is its product with minus the scale."""
    group: int = 32
    factors: Integers | SixBits | None = None
    """Factors of the scale; then, if there is a minimum, as many factors of the minimum."""

    @property
    def num_factors(self) -> int:
        """The number of a block's integers in `factors`."""
        return self.num_values // self.group * (1 if self.minimum_byte is None else 2)

    @property
    def num_bytes(self) -> int:
        """The end of the last field."""
        ends = [self.scale.first_byte + self.scale.format.num_bytes, *_ends(self.codes, self.num_values)]
        if self.minimum_byte is not None:
            ends.append(self.minimum_byte + 2)
        if self.factors is not None:
            ends += _ends(self.factors, self.num_factors)
        return max(ends)

    @property
    def halves(self) -> tuple[int, ...]:
        """The bytes at which its float16 numbers begin."""
        scales = (self.scale.first_byte,) if self.scale.format == NumberFormat.F16 else ()
        return scales if self.minimum_byte is None else (*scales, self.minimum_byte)


def _ends(integers: Integers | SixBits, count: int) -> list[int]:
    if isinstance(integers, SixBits):
        return [integers.first_byte + 12]
    fields = [bits for bits in (integers.low, integers.high) if bits is not None]
    return [first_byte + count * num_bits // 8 for first_byte, num_bits, _ in fields]


GGUF_FORMS = {
    "Q4_0": BlockForm(32, Integers(Bits(2, 4, 16), offset=8)),
    "Q4_1": BlockForm(32, Integers(Bits(4, 4, 16)), minimum_byte=2),
    "Q5_0": BlockForm(32, Integers(Bits(6, 4, 16), Bits(2, 1, 1), offset=16)),
    "Q5_1": BlockForm(32, Integers(Bits(8, 4, 16), Bits(4, 1, 1)), minimum_byte=2),
    "Q8_0": BlockForm(32, Integers(Bits(2, 8, 32))),
    "IQ4_NL": BlockForm(32, Integers(Bits(2, 4, 16), table=NON_LINEAR)),
    "MXFP4": BlockForm(32, Integers(Bits(1, 4, 16), table=DOUBLED_E2M1), Number(NumberFormat.E8M0, 0)),
    "Q2_K": BlockForm(
        256,
        Integers(Bits(16, 2, 32)),
        Number(NumberFormat.F16, 80),
        minimum_byte=82,
        group=16,
        factors=Integers(Bits(0, 4, 16)),
    ),
    "Q3_K": BlockForm(
        256,
        Integers(Bits(32, 2, 32), Bits(0, 1, 32), offset=4),
        Number(NumberFormat.F16, 108),
        group=16,
        factors=Integers(Bits(96, 4, 8), Bits(104, 2, 4), offset=32),
    ),
    "Q4_K": BlockForm(256, Integers(Bits(16, 4, 32)), minimum_byte=2, factors=SixBits(4)),
    "Q5_K": BlockForm(256, Integers(Bits(48, 4, 32), Bits(16, 1, 32)), minimum_byte=2, factors=SixBits(4)),
    "Q6_K": BlockForm(
        256,
        Integers(Bits(0, 4, 64), Bits(128, 2, 32), offset=32),
        Number(NumberFormat.F16, 208),
        group=16,
        factors=Integers(Bits(192, 8, 16)),
    ),
    "IQ4_XS": BlockForm(
        256,
        Integers(Bits(8, 4, 16), table=NON_LINEAR),
        factors=Integers(Bits(4, 4, 1), Bits(2, 2, 1), offset=32),
    ),
    "TQ2_0": BlockForm(256, Integers(Bits(0, 2, 32), offset=1), Number(NumberFormat.F16, 64)),
}
"""By ggml's names; the layouts are those of `ggml-common.h`."""

INTEGER_FORMS = {
    f"I{bits}_{size}": BlockForm(
        size,
        Integers(Bits(5, bits, 16 if bits == 4 else 32), is_unsigned=bits == 8),
        Number(NumberFormat.F32, 0),
        zero_byte=4,
    )
    for bits in (4, 8)
    for size in (32, 64, 128)
}
"""A float32 scale, a byte's zero point, and unsigned codes in the order of Q4_0 or Q8_0."""

FLOAT_FORMS = {
    f"F8_{size}": BlockForm(size, Integers(Bits(4, 8, 32), is_float8=True), Number(NumberFormat.F32, 0))
    for size in (32, 64, 128)
}
"""A float32 scale and float8_e4m3fn codes."""

FORMS = GGUF_FORMS | INTEGER_FORMS | FLOAT_FORMS
