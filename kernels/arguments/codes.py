"""A weight as int8 codes with a scale per output, in the layout of the C kernels.

Shape legend: K blocks of 32 outputs.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Bits = Literal[4, 8]
"""The size of a code. With 4 bits a weight is in blocks (packed_blocks.py)."""

GROUP = 64
"""The multiple to which the inputs are padded; kernels/cpu/source/quantized_dot.h repeats it."""

BLOCK = 32
"""Outputs that are stored together; kernels/cpu/source/quantized_dot.h repeats it."""


@dataclass(frozen=True)
class Codes:
    """A weight as the C kernel reads it."""

    packed: Tensor
    """uint8 [K, bytes of a block]: 32 scales, then codes."""
    num_outputs: int
    num_inputs: int
