"""A weight of float8_e4m3fn codes, in the layout of the C kernel.

Shape legend: K blocks of 32 outputs, N chunks of inputs.
"""

from dataclasses import dataclass

from torch import Tensor

BLOCK, HALF, SCALE_BYTES = 32, 16, 4


@dataclass(frozen=True)
class PackedFp8:
    stored: Tensor
    """uint8 [K, N, bytes]: 32 scales (float32), then codes. 64 bytes are those of two neighbouring inputs: outputs 0 to
    15 in the even bytes, both inputs of an output after each other, and outputs 16 to 31 in the odd ones."""
    num_outputs: int

    @property
    def chunk_inputs(self) -> int:
        return self.stored.shape[2] // BLOCK - SCALE_BYTES

    @property
    def num_inputs(self) -> int:
        return self.stored.shape[1] * self.chunk_inputs

    @property
    def scales_and_codes(self) -> tuple[Tensor, Tensor]:
        """Views of the bytes of scales [K, N, 32, 4] and of codes [K, N, chunk_inputs / 2, halves, 16 outputs, 2]."""
        scales, codes = self.stored.split((BLOCK * SCALE_BYTES, BLOCK * self.chunk_inputs), dim=2)
        halves_last = codes.unflatten(2, (-1, HALF, 2, 2))
        return scales.unflatten(2, (BLOCK, SCALE_BYTES)), halves_last.permute(0, 1, 2, 5, 3, 4)


def packed_fp8_shape(num_outputs: int, num_inputs: int, chunk_inputs: int) -> tuple[int, int, int]:
    """Returns the shape of `stored`."""
    return -(-num_outputs // BLOCK), num_inputs // chunk_inputs, BLOCK * (SCALE_BYTES + chunk_inputs)
