"""The Triton kernel of `filter_min_p`: one program a row finds the best score and then cuts.

Shape legend: S rows, V vocabulary.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch

INF = tl.constexpr(float("inf"))


def filter_min_p(scores_SV: Tensor, min_ps_S: Tensor) -> None:
    num_rows, vocab_size = scores_SV.shape
    assert scores_SV.is_contiguous()
    assert min_ps_S.is_contiguous()
    filter_min_p_kernel[(num_rows,)](scores_SV, min_ps_S, VOCAB=vocab_size, **find_launch("filter_min_p", vocab_size))


@triton.jit(do_not_specialize_on_alignment=["min_ps_ptr"])
def filter_min_p_kernel(scores_ptr, min_ps_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    row_ptr = scores_ptr + row.to(tl.int64) * VOCAB
    min_p = tl.load(min_ps_ptr + row)
    if min_p > 0.0:
        best = tl.full([BLOCK], -INF, tl.float32)
        for start in range(0, VOCAB, BLOCK):
            tokens = start + tl.arange(0, BLOCK)
            best = tl.maximum(best, tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=-INF))
        threshold = tl.max(best, 0) + tl.log(min_p)
        for start in range(0, VOCAB, BLOCK):
            tokens = start + tl.arange(0, BLOCK)
            x = tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=INF)
            tl.store(row_ptr + tokens, tl.full([BLOCK], -INF, tl.float32), mask=x < threshold)
