"""Weights that are quantized while they are read: for the C kernel of `block_linear.py`, and in fp8 for GPUs.

Shape legend: O outputs, I inputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments.block_rows import Segment
from kernels.arguments.packed_blocks import packed_bytes
from kernels.formats.packed_blocks import PACKED_BLOCKS, PackedBlocksWeight
from kernels.formats.plain import PLAIN, PlainWeight
from kernels.formats.planes import PlanesFormat, PlanesWeight
from kernels.formats.weight_format import Weight, WeightFormat
from kernels.operations.code_planes import num_plane_bytes, quantize_planes
from kernels.operations.quantize import Bits, quantize


class QuantizingFormat(WeightFormat):
    """A format whose weights have fewer bits than their values."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weight:
        return WholeWeight(PLAIN.allocate(shape, dtype, device).stored, self)

    def quantize(self, values_OI: Tensor, largest_O: Tensor | None = None) -> Weight:
        """Returns the weight with the quantized values; `largest_O` as in `Weight.finish`."""
        raise NotImplementedError


@dataclass(frozen=True)
class WholeWeight(PlainWeight):
    """The values of a weight that is quantized once all of its rows are set."""

    quantizing: QuantizingFormat

    def finish(self, largest_O: Tensor | None = None) -> Weight:
        return self.quantizing.quantize(self.stored, largest_O)


class QuantizedFormat(QuantizingFormat):
    def __init__(self, bits: Bits):
        self.name = f"int{bits}"
        self._bits: Bits = bits

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return packed_bytes(((self.name, shape[0]),), shape[1])

    def quantize(self, values_OI: Tensor, largest_O: Tensor | None = None) -> Weight:
        return PackedBlocksWeight(quantize(values_OI, self._bits, largest_O), values_OI.dtype)

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> Weight:
        return PACKED_BLOCKS.restore(stored, numbers)


class Fp8Format(QuantizingFormat):
    """float8_e4m3fn with a scale per output, in planes."""

    name = "fp8"
    _form = "F8_128"

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return num_plane_bytes(self._form, shape[0], shape[1])

    def quantize(self, values_OI: Tensor, largest_O: Tensor | None = None) -> PlanesWeight:
        """Returns the weight, for any number of inputs: the last ones are filled up with zeros."""
        in_planes = PlanesFormat((Segment(self._form, len(values_OI)),))
        weight = in_planes.allocate(tuple(values_OI.shape), values_OI.dtype, values_OI.device)
        quantize_planes(weight.parts[0], values_OI, largest_O)
        return weight


FP8 = Fp8Format()

QUANTIZED: dict[Bits, QuantizedFormat] = {8: QuantizedFormat(8), 4: QuantizedFormat(4)}
