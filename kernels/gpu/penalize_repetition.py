"""The Triton kernel of `penalize_repetition`: every entry's logit is read before one is written.

Shape legend: S rows, V vocabulary, N tokens that occurred in all rows.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.pair_entries import entry_grid, entry_launch, entry_places, gather_entries


def penalize_repetition(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, penalties_N: Tensor) -> None:
    assert logits_SV.is_contiguous()
    before_N = gather_entries(logits_SV, rows_N, ids_N)
    penalize_repetition_kernel[entry_grid(rows_N)](
        logits_SV, rows_N, ids_N, before_N, penalties_N, len(rows_N), logits_SV.shape[1], **entry_launch()
    )


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["logits_ptr"])
def penalize_repetition_kernel(
    logits_ptr, rows_ptr, ids_ptr, before_ptr, penalties_ptr, num_entries, vocab_size, BLOCK: tl.constexpr
):
    entries, mask, places = entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK)
    before = tl.load(before_ptr + entries, mask=mask, other=0.0)
    penalty = tl.load(penalties_ptr + entries, mask=mask, other=1.0)
    after = tl.where(before > 0, tl.math.div_rn(before, penalty), before * penalty)
    tl.store(logits_ptr + places, after, mask=mask)
