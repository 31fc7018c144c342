"""A weight packed for the C kernel of `packed_linear.py`, in bfloat16 or float32.

Inputs that fill no step of the kernel are followed by zeros, in the weight and in x.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, S inputs that lie together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.formats.weight_format import Linear, Ranks, Rows, Weight, WeightFormat
from kernels.operations.expert_linear import ExpertLinear, packed_experts
from kernels.operations.gelu import GeluKind
from kernels.operations.packed_linear import BLOCK, STEP, allocate_packed, pack_rows, packed_linear, unpack_rows


def _round_up(num_inputs: int) -> int:
    return -(-num_inputs // STEP) * STEP


def _pad(x_TI: Tensor) -> Tensor:
    """Returns the rows with zeros up to a whole step."""
    num_missing = -x_TI.shape[1] % STEP
    return functional.pad(x_TI, (0, num_missing)) if num_missing else x_TI


class PackedFormat(WeightFormat):
    name = "packed"

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return -(-shape[0] // BLOCK) * BLOCK * _round_up(shape[1]) * dtype.itemsize

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> "PackedWeight":
        num_outputs, num_inputs = shape
        return PackedWeight(allocate_packed(num_outputs, _round_up(num_inputs), dtype), num_outputs, num_inputs)

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> "PackedWeight":
        return PackedWeight(stored, *numbers)


PACKED = PackedFormat()


@dataclass(frozen=True)
class PackedWeight(Weight):
    """`stored` is [K, I / S, 32, S], its last block is padded with zeros."""

    stored: Tensor
    num_outputs: int
    num_inputs: int
    format = PACKED

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.num_outputs, self.num_inputs)

    @property
    def is_padded(self) -> bool:
        return self.num_inputs % STEP != 0

    def set_rows(self, first_row: int, rows: Rows) -> None:
        assert isinstance(rows, Tensor)
        pack_rows(self.stored, first_row, _pad(rows))

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """The GELU is part of the product."""
        packed, num_outputs = self.stored, self.num_outputs
        return lambda x_TI, out_TO=None: packed_linear(_pad(x_TI), packed, bias_O, num_outputs, activation, out_TO)

    def experts(self, bias_O: Tensor | None, ranks: Ranks | None = None) -> ExpertLinear:
        return lambda x_RI, routes, out_RO=None: packed_experts(self.stored, bias_O, _pad(x_RI), routes, out_RO)

    def look_up(self, row_T: Tensor) -> Tensor:
        return unpack_rows(self.stored, row_T)[:, : self.num_inputs].contiguous()
