"""Prefetches into the L2 cache: they change no result, and no program waits for them.

Triton's interpreter has none.
"""

import triton
import triton.language as tl
from torch import Tensor

LINE_BYTES = tl.constexpr(128)
"""What one prefetch reads."""

BLOCK_LINES = tl.constexpr(256)

MAX_LINES = (16 << 20) // 128
"""The most lines of a tensor: as much as memory delivers while attention to a few rows computes, of 50 MB."""


def count_lines(weight: Tensor) -> int:
    return min(MAX_LINES, weight.nbytes // LINE_BYTES.value)


@triton.jit
def prefetch(lines):
    """Prefetches the lines that have these addresses."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [lines.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def prefetch_part(tensor, part, num_parts, NUM_LINES: tl.constexpr):
    """Prefetches this part of the tensor's first lines."""
    LINE: tl.constexpr = LINE_BYTES * 8 // tensor.dtype.element_ty.primitive_bitwidth
    for first in range(part * BLOCK_LINES, NUM_LINES, num_parts * BLOCK_LINES):
        prefetch(tensor + tl.minimum(first + tl.arange(0, BLOCK_LINES), NUM_LINES - 1) * LINE)
