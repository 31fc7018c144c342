"""The Triton kernel of `penalize_occurrence`: counts by atomic additions, no sort.

Shape legend: S rows, V vocabulary, N output tokens of all rows.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.pair_entries import entry_grid, entry_launch, entry_places, gather_entries, sum_entries


def penalize_occurrence(
    logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, frequency_N: Tensor, presence_N: Tensor
) -> None:
    assert logits_SV.is_contiguous()
    before_N = gather_entries(logits_SV, rows_N, ids_N)
    leaders_N, counts_N = sum_entries(logits_SV, rows_N, ids_N, None)
    penalize_occurrence_kernel[entry_grid(rows_N)](
        logits_SV,
        rows_N,
        ids_N,
        before_N,
        leaders_N,
        counts_N,
        frequency_N,
        presence_N,
        len(rows_N),
        logits_SV.shape[1],
        **entry_launch(),
    )


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["logits_ptr"])
def penalize_occurrence_kernel(
    logits_ptr,
    rows_ptr,
    ids_ptr,
    before_ptr,
    leaders_ptr,
    counts_ptr,
    frequency_ptr,
    presence_ptr,
    num_entries,
    vocab_size,
    BLOCK: tl.constexpr,
):
    entries, mask, places = entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK)
    count = tl.load(counts_ptr + tl.load(leaders_ptr + entries, mask=mask, other=0), mask=mask, other=0.0)
    before = tl.load(before_ptr + entries, mask=mask, other=0.0)
    frequency = tl.load(frequency_ptr + entries, mask=mask, other=0.0)
    presence = tl.load(presence_ptr + entries, mask=mask, other=0.0)
    tl.store(logits_ptr + places, before - count.to(tl.float32) * frequency - presence, mask=mask)
