"""A weight as int8 or int4 codes with scales, in the layout of the C kernels.

Shape legend: K blocks of 32 outputs, N groups of inputs.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Bits = Literal[4, 8]

GROUPS: dict[Bits, int] = {8: 64, 4: 32}
"""By the bits of a code, the multiple to which the inputs are padded; with 4 bits each group of them has a scale.
kernels/cpu/source/quantized_dot.h repeats both numbers."""

BLOCK = 32
"""Outputs that are stored together; kernels/cpu/source/quantized_dot.h repeats it."""


@dataclass(frozen=True)
class Codes:
    """A weight as the C kernel reads it."""

    packed: Tensor
    """uint8 [K, N, bytes of a group]: 32 scales, then codes; N is 1 with 8 bits."""
    num_outputs: int
    num_inputs: int
    bits: Bits


def group_size(num_inputs: int, bits: Bits) -> int:
    """Returns how many inputs share a scale: with 8 bits all of them, padding included."""
    return GROUPS[bits] if bits == 4 else -(-num_inputs // GROUPS[bits]) * GROUPS[bits]
