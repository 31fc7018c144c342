"""A weight of 8-bit floats with scales, packed for the C kernel of `fp8_linear.py`.

Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from kernels.arguments.block_forms import FLOAT_FORMS, FORMS
from kernels.arguments.block_rows import BlockRows, Segment
from kernels.arguments.packed_fp8 import PackedFp8, packed_fp8_shape
from kernels.cpu.huge_pages import empty_huge
from kernels.formats.weight_format import Linear, Rows, Weight, WeightFormat
from kernels.operations.fp8_linear import fp8_linear, pack_fp8_rows, unpack_fp8
from kernels.operations.gelu import GeluKind


class PackedFp8Format(WeightFormat):
    """`chunk_inputs` are those of the weights that it allocates."""

    name = "packed fp8"

    def __init__(self, chunk_inputs: int = 0):
        self._chunk_inputs = chunk_inputs

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return prod(packed_fp8_shape(shape[0], shape[1], self._chunk_inputs))

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> "PackedFp8Weight":
        stored = empty_huge(packed_fp8_shape(shape[0], shape[1], self._chunk_inputs), torch.uint8)
        stored[-1].zero_()
        return PackedFp8Weight(PackedFp8(stored, shape[0]))

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> "PackedFp8Weight":
        (num_outputs,) = numbers
        return PackedFp8Weight(PackedFp8(stored, num_outputs))


PACKED_FP8 = PackedFp8Format()


@dataclass(frozen=True)
class PackedFp8Weight(Weight):
    codes: PackedFp8
    format = PACKED_FP8

    @property
    def stored(self) -> Tensor:
        return self.codes.stored

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.codes.num_outputs,)

    def set_rows(self, first_row: int, rows: Rows) -> None:
        assert isinstance(rows, BlockRows)
        pack_fp8_rows(self.codes, first_row, rows)

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """The GELU is part of the product."""
        codes = self.codes
        return lambda x_TI, out_TO=None: fp8_linear(x_TI, codes, bias_O, activation, out_TO)

    def look_up(self, row_T: Tensor) -> Tensor:
        return unpack_fp8(self.codes)[row_T.long()].bfloat16()


def find_packed_fp8(segments: Sequence[Segment]) -> PackedFp8Format | None:
    """Returns the format if all segments are 8-bit floats with scales of as many inputs."""
    forms = {form for form, _ in segments}
    if len(forms) != 1 or not forms <= FLOAT_FORMS.keys():
        return None
    return PackedFp8Format(FORMS[forms.pop()].num_values)
