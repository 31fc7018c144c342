"""A quantized matrix in planes: its codes, their scales and their minimums each lie together, for GPUs.

Shape legend: O outputs, W words of codes of an output, G groups of inputs, S scales of an output.

A value is (code - offset, or the entry of `table` with that number) times the scale of its group, less the group's
minimum. Inputs are padded to whole spans with codes and scales of 0.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

FIELDS = 8
"""Codes of a word. The words of a span hold `FIELDS` groups: field f of word w belongs to input f * group + w."""


class PlaneForm(NamedTuple):
    """What a kernel is compiled for."""

    low_bits: int
    """2 or 4 with words; with 8 the codes lie in the order of the inputs."""
    high_bits: int
    """More bits of the same codes: 0, 1 or 2."""
    offset: int
    has_table: bool
    group: int
    """Inputs of a group: 16 or 32."""
    groups_a_scale: int
    has_scale_factors: bool
    has_minimums: bool
    has_minimum_factors: bool
    is_fp4: bool
    """The table has twice the numbers with the codes as sign, 2 bits of exponent and 1 of mantissa."""

    @property
    def looks_up(self) -> bool:
        """True if kernels read the table."""
        return self.has_table and not self.is_fp4


@dataclass(frozen=True)
class CodePlanes:
    low: Tensor
    """int16 or int32 [O, W], or whole codes: int8 or float8_e4m3fn [O, inputs]."""
    high: Tensor | None
    """int8 or int16 [O, W]"""
    scales: Tensor
    """float16, bfloat16 or float32 [S, O]; groups that share one are neighbours."""
    scale_factors: Tensor | None
    """int8 [G, O]: what a group's scale is multiplied by."""
    minimums: Tensor | None
    """Like `scales`."""
    minimum_factors: Tensor | None
    """int8 [G, O]"""
    table: Tensor | None
    """bfloat16 [16]"""
    form: PlaneForm
    num_inputs: int

    @property
    def num_outputs(self) -> int:
        return len(self.low)

    @property
    def num_spans(self) -> int:
        return -(-self.num_inputs // (FIELDS * self.form.group))
