"""All formats of weights by name."""

from collections.abc import Sequence

import torch

from kernels.arguments.block_rows import Segment
from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.formats.quantized import QUANTIZED
from kernels.formats.weight_format import QuantizingFormat, WeightFormat

QUANTIZING: dict[str, QuantizingFormat] = {one.name: one for one in QUANTIZED.values()}
"""The formats that `--quantization` can name."""

FORMATS: dict[str, WeightFormat] = {one.name: one for one in (PLAIN, PACKED, *QUANTIZING.values())}

BLOCK_FORMATS: frozenset[str] = frozenset()
"""The names of the formats whose weights take rows in blocks."""


def find_block_format(segments: Sequence[Segment], dtype: torch.dtype, device: torch.device) -> WeightFormat | None:
    """Returns the format that computes in the forms of these rows, `None` if a kernel for one of them is missing."""
    return None
