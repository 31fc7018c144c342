"""A weight of 5-bit codes with a scale for each output, computed by plain torch.

Shape legend: T tokens, I inputs, O outputs; eight codes are five bytes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.formats.plain import PLAIN, PlainWeight
from kernels.formats.weight_format import AllReduce, Linear, Weight, WeightFormat, sum_of_ranks
from kernels.operations.gelu import GeluKind, gelu

SCALE_BYTES = 4


@dataclass(frozen=True)
class Int5Weight:
    """`stored` is uint8 [O, 4 + I * 5 / 8]: the scale in float32, then the codes."""

    stored: Tensor
    num_inputs: int

    @property
    def format(self) -> WeightFormat:
        return INT5

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.num_inputs,)

    def set_rows(self, first_row: int, rows: Tensor) -> None:
        raise AssertionError("only complete weights are quantized")

    def finish(self, largest_O: Tensor | None = None) -> "Int5Weight":
        return self

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        def apply(x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
            weight_OI = _unpack(self.stored, self.num_inputs).to(x_TI.dtype)
            result = functional.linear(x_TI, weight_OI, bias_O)
            return result if activation is None else gelu(result, activation)

        return apply

    def row_parallel(self, bias_O: Tensor | None, all_reduce: AllReduce, num_ranks: int) -> Linear:
        return sum_of_ranks(self.linear(bias_O, None), all_reduce)

    def look_up(self, row_T: Tensor) -> Tensor:
        return _unpack(self.stored[row_T], self.num_inputs)


@dataclass(frozen=True)
class WholeInt5Weight(PlainWeight):
    """The values of a weight that is quantized once all of its rows are set."""

    def finish(self, largest_O: Tensor | None = None) -> Weight:
        return INT5.quantize(self.stored)


class Int5Format:
    name = "int5"
    most_rows_added = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weight:
        return WholeInt5Weight(PLAIN.allocate(shape, dtype, device).stored)

    def quantize(self, values_OI: Tensor) -> Int5Weight:
        wide_OI = values_OI.float()
        scale_O1 = wide_OI.abs().amax(1, keepdim=True).clamp(min=1e-20) / 15
        codes_OGX = ((wide_OI / scale_O1).round().long() + 16).unflatten(1, (-1, 8))
        words_OG = (codes_OGX << (5 * torch.arange(8))).sum(-1)
        bytes_OGX = (words_OG[..., None] >> (8 * torch.arange(5)) & 255).to(torch.uint8)
        return Int5Weight(torch.cat((scale_O1.view(torch.uint8), bytes_OGX.flatten(1)), 1), values_OI.shape[1])

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> Int5Weight:
        return Int5Weight(stored, *numbers)


INT5 = Int5Format()


def _unpack(stored: Tensor, num_inputs: int) -> Tensor:
    scale_O1 = stored[:, :SCALE_BYTES].contiguous().view(torch.float32)
    words_OG = (stored[:, SCALE_BYTES:].long().unflatten(1, (-1, 5)) << (8 * torch.arange(5))).sum(-1)
    codes_OI = (words_OG[..., None] >> (5 * torch.arange(8)) & 31).flatten(1)[:, :num_inputs] - 16
    return codes_OI * scale_O1
