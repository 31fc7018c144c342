"""Weights that are quantized while they are read: int8 for the kernels of `quantized_linear.py`, int4 in blocks.

Shape legend: T tokens, I inputs, O outputs.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.arguments.codes import BLOCK, Bits, Codes
from kernels.formats.packed_blocks import PackedBlocksWeight
from kernels.formats.plain import PLAIN, PlainWeight
from kernels.formats.weight_format import AllReduce, Linear, Rows, Weight, WeightFormat
from kernels.operations.block_linear import quantize_blocks
from kernels.operations.expert_codes import quantized_experts
from kernels.operations.expert_linear import ExpertLinear
from kernels.operations.gelu import GeluKind
from kernels.operations.quantized_linear import dequantize, quantize, quantized_linear, sum_magnitudes


@dataclass(frozen=True)
class QuantizedWeight:
    codes: Codes

    @property
    def format(self) -> WeightFormat:
        return QUANTIZED[8]

    @property
    def stored(self) -> Tensor:
        return self.codes.packed

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.codes.num_outputs, self.codes.num_inputs

    def set_rows(self, first_row: int, rows: Rows) -> None:
        raise AssertionError("only complete weights are quantized")

    def finish(self, largest_O: Tensor | None = None) -> "QuantizedWeight":
        return self

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """The GELU is part of the product."""
        codes = self.codes
        return lambda x_TI, out_TO=None: quantized_linear(x_TI, codes, bias_O, activation, out_TO)

    def row_parallel(self, bias_O: Tensor | None, all_reduce: AllReduce, num_ranks: int) -> Linear:
        """int8 has one scale per token: the ranks first add up the magnitudes of their parts of it."""
        codes = self.codes
        whole_inputs = codes.num_inputs * num_ranks

        def apply(x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
            mean_T = all_reduce(sum_magnitudes(x_TI)) / whole_inputs
            return all_reduce(quantized_linear(x_TI, codes, bias_O, None, out_TO, mean_T))

        return apply

    def experts(self, bias_O: Tensor | None) -> ExpertLinear:
        return partial(quantized_experts, self.codes, bias_O)

    def look_up(self, row_T: Tensor) -> Tensor:
        codes = self.codes
        found = Codes(codes.packed[row_T // BLOCK], BLOCK * len(row_T), codes.num_inputs)
        return dequantize(found).view(len(row_T), BLOCK, -1)[torch.arange(len(row_T)), row_T % BLOCK]


@dataclass(frozen=True)
class WholeWeight(PlainWeight):
    """The values of a weight that is quantized once all of its rows are set."""

    bits: Bits

    def finish(self, largest_O: Tensor | None = None) -> Weight:
        return QUANTIZED[self.bits].quantize(self.stored, largest_O)


class QuantizedFormat:
    def __init__(self, bits: Bits):
        self.name = f"int{bits}"
        self._bits: Bits = bits

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return PLAIN.num_bytes(shape, dtype)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weight:
        return WholeWeight(PLAIN.allocate(shape, dtype, device).stored, self._bits)

    def quantize(self, values_OI: Tensor, largest_O: Tensor | None = None) -> Weight:
        """Quantizes the values and returns the weight."""
        if self._bits == 4:
            return PackedBlocksWeight(quantize_blocks(values_OI), values_OI.dtype)
        return QuantizedWeight(quantize(values_OI, largest_O))

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> QuantizedWeight:
        num_outputs, num_inputs = numbers
        return QuantizedWeight(Codes(stored, num_outputs, num_inputs))


QUANTIZED: dict[Bits, QuantizedFormat] = {8: QuantizedFormat(8), 4: QuantizedFormat(4)}
