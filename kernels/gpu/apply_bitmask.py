"""The Triton kernel of `apply_bitmask`: one program for a block of the vocabulary of a row.

Shape legend: S rows, V vocabulary, A restricted rows, W words of a bitmask.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def apply_bitmask(logits_SV: Tensor, rows_A: Tensor, bitmask_AW: Tensor) -> None:
    vocab_size = logits_SV.shape[1]
    launch = find_launch("apply_bitmask")
    grid = (len(rows_A), triton.cdiv(vocab_size, launch["BLOCK"]))
    apply_bitmask_kernel[grid](logits_SV, rows_A, bitmask_AW, VOCAB=vocab_size, **launch)


@triton.jit(do_not_specialize_on_alignment=["logits_ptr"])
def apply_bitmask_kernel(logits_ptr, rows_ptr, bitmask_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the logits of tokens that are not allowed, and reads none."""
    WORDS: tl.constexpr = (VOCAB + 31) // 32
    row = tl.load(rows_ptr + tl.program_id(0))
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words_ptr = bitmask_ptr + tl.program_id(0).to(tl.int64) * WORDS
    words = tl.load(words_ptr + tokens // 32, mask=tokens < VOCAB, other=-1)
    is_out = ((words >> (tokens % 32)) & 1) == 0
    nothing = tl.full([BLOCK], float("-inf"), tl.float32)
    tl.store(logits_ptr + row * VOCAB + tokens, nothing, mask=is_out)
