"""A weight in the block form of its file, in the layout of the C kernels.

Outputs are in blocks of 32. For each group of 32 inputs, a block has the codes of its outputs, four neighbouring inputs
of an output together. The 4-bit codes of inputs i and i + 16 share a byte; further bits are in separate planes. Groups
of a unit share a scale per output.
"""

import ctypes
from dataclasses import astuple, dataclass
from functools import cached_property

from torch import Tensor

BLOCK = 32
"""Outputs of a block, and inputs of a group; kernels/cpu/source/block_layout.h repeats it."""

F16, BF16, F32, E8M0 = range(4)
"""Number formats of a unit's scale; kernels/cpu/source/block_layout.h repeats them and the next ones."""

SIMPLE, Q45_K, Q6_K, IQ4_XS, Q23_K = range(5)
"""How a file stores a unit. SIMPLE: scale, minimum, zero point, further bits and codes, one after another."""

IQ4_VALUES, MXFP4_VALUES = 1, 2
"""The tables whose entries codes stand for; the entries are in `TABLES`."""

SCALE_BYTES = {F16: 2, BF16: 2, F32: 4, E8M0: 1}

TABLES = {
    IQ4_VALUES: (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    MXFP4_VALUES: (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
}


@dataclass(frozen=True)
class PackedForm:
    """A weight is (code - `offset`) * scale + minimum; with factors, less the minimum.

    The C kernels read these fields as integers, in this order.
    """

    bits: int
    offset: int = 0
    scale: int = F16
    groups: int = 1
    """Groups of a unit."""
    has_minimum: bool = False
    """Units have a minimum in float16."""
    has_zero: bool = False
    """Units have an unsigned zero point of 8 bits: the minimum is its product with minus the scale."""
    num_factors: int = 0
    """Signed factors of 8 bits per group, each of 32 or 16 inputs: of the unit's scale, and of its minimum."""
    table: int = 0
    source: int = SIMPLE

    @property
    def header_bytes(self) -> int:
        """The bytes of a unit before its groups, in a block."""
        return BLOCK * (SCALE_BYTES[self.scale] + 2 * self.has_minimum + self.has_zero)

    @property
    def factor_bytes(self) -> int:
        """The bytes of a group before its codes, in a block."""
        return BLOCK * self.num_factors * (1 + self.has_minimum)

    @property
    def unit_bytes(self) -> int:
        return self.header_bytes + self.groups * (self.factor_bytes + BLOCK * BLOCK * self.bits // 8)

    @property
    def unit_inputs(self) -> int:
        return self.groups * BLOCK

    def num_bytes(self, num_outputs: int, num_inputs: int) -> int:
        """Returns the size of a segment: outputs fill blocks, inputs fill units."""
        return -(-num_outputs // BLOCK) * -(-num_inputs // self.unit_inputs) * self.unit_bytes


def _integers(bits: int) -> dict[str, PackedForm]:
    """Returns the forms whose 32, 64 or 128 inputs share a scale in float32 and a zero point."""
    return {
        f"I{bits}_{BLOCK * groups}": PackedForm(bits, scale=F32, groups=groups, has_zero=True) for groups in (1, 2, 4)
    }


FORMS = {
    "Q4_0": PackedForm(4, offset=8),
    "Q4_1": PackedForm(4, has_minimum=True),
    "Q5_0": PackedForm(5, offset=16),
    "Q5_1": PackedForm(5, has_minimum=True),
    "Q8_0": PackedForm(8, offset=128),
    "IQ4_NL": PackedForm(4, offset=128, table=IQ4_VALUES),
    "MXFP4": PackedForm(4, offset=128, scale=E8M0, table=MXFP4_VALUES),
    "Q2_K": PackedForm(4, groups=8, has_minimum=True, num_factors=2, source=Q23_K),
    "Q3_K": PackedForm(4, offset=4, groups=8, num_factors=2, source=Q23_K),
    "Q4_K": PackedForm(4, groups=8, has_minimum=True, num_factors=1, source=Q45_K),
    "Q5_K": PackedForm(5, groups=8, has_minimum=True, num_factors=1, source=Q45_K),
    "Q6_K": PackedForm(6, offset=32, groups=8, num_factors=2, source=Q6_K),
    "IQ4_XS": PackedForm(4, offset=128, groups=8, num_factors=1, table=IQ4_VALUES, source=IQ4_XS),
    "int4": PackedForm(4, offset=8, scale=BF16),
    **_integers(4),
    **_integers(8),
}
"""The forms that the C kernels compute, by name: GGUF's types, and integer codes with a scale and a zero point.

A form of a table has an offset of 128: its codes become the table's entries plus 128.
"""

Segment = tuple[str, int]
"""The name of a form and a number of outputs."""


@dataclass(frozen=True)
class PackedBlocks:
    """A weight whose outputs may have several forms, one segment after another."""

    stored: Tensor
    """uint8, of `packed_bytes`."""
    segments: tuple[Segment, ...]
    num_inputs: int

    @property
    def num_outputs(self) -> int:
        return sum(num_outputs for _, num_outputs in self.segments)

    @cached_property
    def description(self) -> "ctypes.Array[ctypes.c_int32]":
        """The segments as the C kernels read them; they keep its address."""
        words = [word for form, num_outputs in self.segments for word in (num_outputs, *astuple(FORMS[form]))]
        return (ctypes.c_int32 * len(words))(*words)


def packed_bytes(segments: tuple[Segment, ...], num_inputs: int) -> int:
    """Returns the size of a weight's `stored`."""
    return sum(FORMS[form].num_bytes(num_outputs, num_inputs) for form, num_outputs in segments)
