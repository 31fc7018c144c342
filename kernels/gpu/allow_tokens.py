"""The Triton kernel of `allow_tokens`: allowed logits are read, the rows are filled, and they are written back.

Shape legend: S rows, V vocabulary, A restricted rows, N allowed tokens of all of them.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch
from kernels.gpu.pair_entries import gather_entries, scatter_entries


def allow_tokens(logits_SV: Tensor, rows_A: Tensor, entry_rows_N: Tensor, ids_N: Tensor) -> None:
    assert logits_SV.is_contiguous()
    kept_N = gather_entries(logits_SV, entry_rows_N, ids_N)
    vocab_size, launch = logits_SV.shape[1], find_launch("allow_tokens")
    fill_kernel[(len(rows_A), triton.cdiv(vocab_size, launch["BLOCK"]))](logits_SV, rows_A, VOCAB=vocab_size, **launch)
    scatter_entries(logits_SV, entry_rows_N, ids_N, kept_N)


@triton.jit(do_not_specialize_on_alignment=["logits_ptr"])
def fill_kernel(logits_ptr, rows_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.load(rows_ptr + tl.program_id(0))
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    nothing = tl.full([BLOCK], float("-inf"), tl.float32)
    tl.store(logits_ptr + row * VOCAB + tokens, nothing, mask=tokens < VOCAB)
