"""Weights that are quantized while they are read, for the C kernel of `block_linear.py`.

Shape legend: O outputs, I inputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments.packed_blocks import packed_bytes
from kernels.formats.packed_blocks import PACKED_BLOCKS, PackedBlocksWeight
from kernels.formats.plain import PLAIN, PlainWeight
from kernels.formats.weight_format import Weight
from kernels.operations.quantize import Bits, quantize


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
        return packed_bytes(((self.name, shape[0]),), shape[1])

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weight:
        return WholeWeight(PLAIN.allocate(shape, dtype, device).stored, self._bits)

    def quantize(self, values_OI: Tensor, largest_O: Tensor | None = None) -> Weight:
        """Quantizes the values and returns the weight."""
        return PackedBlocksWeight(quantize(values_OI, self._bits, largest_O), values_OI.dtype)

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> Weight:
        return PACKED_BLOCKS.restore(stored, numbers)


QUANTIZED: dict[Bits, QuantizedFormat] = {8: QuantizedFormat(8), 4: QuantizedFormat(4)}
