"""The Triton kernel of `add_biases`: biases of one token add up by atomic additions, then each token is written once.

Shape legend: S rows, V vocabulary, N biases of all rows.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.pair_entries import entry_grid, entry_launch, entry_places, gather_entries, sum_entries


def add_biases(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, values_N: Tensor) -> None:
    assert logits_SV.is_contiguous()
    before_N = gather_entries(logits_SV, rows_N, ids_N)
    leaders_N, sums_N = sum_entries(logits_SV, rows_N, ids_N, values_N)
    add_biases_kernel[entry_grid(rows_N)](
        logits_SV, rows_N, ids_N, before_N, leaders_N, sums_N, len(rows_N), logits_SV.shape[1], **entry_launch()
    )


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["logits_ptr"])
def add_biases_kernel(
    logits_ptr, rows_ptr, ids_ptr, before_ptr, leaders_ptr, sums_ptr, num_entries, vocab_size, BLOCK: tl.constexpr
):
    entries, mask, places = entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK)
    total = tl.load(sums_ptr + tl.load(leaders_ptr + entries, mask=mask, other=0), mask=mask, other=0.0)
    before = tl.load(before_ptr + entries, mask=mask, other=0.0)
    tl.store(logits_ptr + places, before + total.to(tl.float32), mask=mask)
