"""A weight of float8_e4m3fn codes, in the layout of the C kernel.

Shape legend: K blocks of 32 outputs, N chunks of inputs.
"""

from dataclasses import dataclass

from torch import Tensor

BLOCK, SCALE_BYTES = 32, 4


@dataclass(frozen=True)
class PackedFp8:
    stored: Tensor
    """uint8 [K, N, bytes]: 32 scales (float32), then codes, two neighbouring inputs of all 32 outputs together."""
    num_outputs: int

    @property
    def chunk_inputs(self) -> int:
        return self.stored.shape[2] // BLOCK - SCALE_BYTES

    @property
    def num_inputs(self) -> int:
        return self.stored.shape[1] * self.chunk_inputs

    @property
    def scales_and_codes(self) -> tuple[Tensor, Tensor]:
        """Views of the bytes of scales [K, N, 32, 4] and of codes [K, N, chunk_inputs / 2, 32, 2]."""
        scales, codes = self.stored.split((BLOCK * SCALE_BYTES, BLOCK * self.chunk_inputs), dim=2)
        return scales.unflatten(2, (BLOCK, SCALE_BYTES)), codes.unflatten(2, (-1, BLOCK, 2))


def packed_fp8_shape(num_outputs: int, num_inputs: int, chunk_inputs: int) -> tuple[int, int, int]:
    """Returns the shape of `stored`."""
    return -(-num_outputs // BLOCK), num_inputs // chunk_inputs, BLOCK * (SCALE_BYTES + chunk_inputs)
