"""A weight in the layout of the C kernels (packed_forms.py)."""

import ctypes
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from kernels.arguments.packed_forms import BLOCK, FORMS

NUMBERS = {name: number for number, name in enumerate(FORMS)}
"""The number of each form in the C kernels."""


@dataclass(frozen=True)
class PackedBlocks:
    """A weight whose outputs may have several forms, one segment after another.

    With a form that has scales per token it has one segment.
    """

    stored: Tensor
    """uint8, of `packed_bytes`."""
    segments: tuple[tuple[str, int], ...]
    """The name of a form and a number of outputs each."""
    num_inputs: int

    @property
    def num_outputs(self) -> int:
        return sum(num_outputs for _, num_outputs in self.segments)

    @cached_property
    def description(self) -> "ctypes.Array[ctypes.c_int32]":
        """The segments as the C kernels read them; they keep its address."""
        words = [word for form, num_outputs in self.segments for word in (num_outputs, NUMBERS[form])]
        return (ctypes.c_int32 * len(words))(*words)


def packed_bytes(segments: tuple[tuple[str, int], ...], num_inputs: int) -> int:
    """Returns the size of a weight's `stored`: outputs fill blocks, inputs fill units."""
    num_bytes = 0
    for name, num_outputs in segments:
        form = FORMS[name].of_row(num_inputs)
        num_bytes += -(-num_outputs // BLOCK) * form.num_units(num_inputs) * form.unit_bytes
    return num_bytes
