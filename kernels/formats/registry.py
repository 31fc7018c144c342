"""All formats of weights by name."""

from collections.abc import Sequence

import torch

from kernels.arguments.block_rows import Segment
from kernels.dispatch import find_implementation, is_on_cpu
from kernels.formats.packed import PACKED
from kernels.formats.packed_blocks import PACKED_BLOCKS, PackedBlocksFormat, can_pack
from kernels.formats.packed_fp8 import PACKED_FP8, find_packed_fp8
from kernels.formats.plain import PLAIN
from kernels.formats.planes import PLANES, PlanesFormat, has_planes
from kernels.formats.quantized import FP8, QUANTIZED, QuantizingFormat
from kernels.formats.weight_format import WeightFormat

QUANTIZING: dict[str, QuantizingFormat] = {one.name: one for one in (*QUANTIZED.values(), FP8)}
"""The formats that `--quantization` can name."""

FORMATS: dict[str, WeightFormat] = {
    one.name: one for one in (PLAIN, PACKED, *QUANTIZING.values(), PACKED_BLOCKS, PACKED_FP8)
}

BLOCK_FORMATS = frozenset({PLANES, PACKED_BLOCKS.name, PACKED_FP8.name})
"""The names of the formats whose weights take rows in blocks."""


def has_experts(block_format: WeightFormat, segments: Sequence[Segment]) -> bool:
    """True if weights of several experts are computed in this format: rows that all have the same form."""
    return block_format.name in (PACKED_BLOCKS.name, PLANES) and len(segments) == 1


def find_block_format(segments: Sequence[Segment], dtype: torch.dtype, device: torch.device) -> WeightFormat | None:
    """Returns the format that computes in the forms of these rows, `None` if a kernel for one of them is missing."""
    if not is_on_cpu(device):
        return PlanesFormat(tuple(segments)) if has_planes(segments, device) else None
    like = torch.empty(0, dtype=dtype, device=device)
    if find_implementation("fp8_linear", like) is not None:
        packed_fp8 = find_packed_fp8(segments)
        if packed_fp8 is not None:
            return packed_fp8
    if can_pack(segments) and find_implementation("block_linear", like) is not None:
        return PackedBlocksFormat(segments)
    return None
