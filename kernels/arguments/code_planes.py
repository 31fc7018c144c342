"""A quantized matrix in planes: its codes, their scales and their minimums each lie together, for GPUs.

Shape legend: O outputs, W words of codes of an output, G groups of inputs, S scales of an output.

A value is (code - offset, or the entry of `table` with that number) times the scale of its group, less the group's
minimum. Inputs are padded to whole `span`s with codes of 0.
"""

from dataclasses import dataclass

from torch import Tensor

FIELDS = 8
"""Codes of a word."""


@dataclass(frozen=True)
class CodePlanes:
    low: Tensor
    """int16 or int32 [O, W]: 2 or 4 bits of 8 codes a word. Field f of word w of a span is that of input
    f * group + w. Or whole codes in the order of the inputs: int8 or float8_e4m3fn [O, inputs]."""
    high: Tensor | None
    """int8 or int16 [O, W]: 1 or 2 more bits of the same codes."""
    scales: Tensor
    """float16, bfloat16 or float32 [S, O]; groups that share one are neighbours."""
    scale_factors: Tensor | None
    """int8 [G, O]: what a group's scale is multiplied by."""
    minimums: Tensor | None
    """Like `scales`, and may be the same tensor."""
    minimum_factors: Tensor | None
    """int8 [G, O]"""
    table: Tensor | None
    """bfloat16 [16]"""
    offset: int
    group: int
    """Inputs of a group: 16 or 32."""
    low_bits: int
    high_bits: int
    num_inputs: int

    @property
    def num_outputs(self) -> int:
        return len(self.low)

    @property
    def span(self) -> int:
        """The inputs whose codes lie in `group` words."""
        return FIELDS * self.group

    @property
    def num_spans(self) -> int:
        return -(-self.num_inputs // self.span)

    @property
    def groups_a_scale(self) -> int:
        return self.num_spans * FIELDS // len(self.scales)
