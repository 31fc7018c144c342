"""Triton kernels over entries that name (row, token) pairs, possibly more than once: reading them before anything is
written, and summing entries of the same pair without a sort.

Shape legend: S rows, V vocabulary, N entries.
For a sum the entries of a pair agree on a leader: all write their index over the pair's logit, and the one found there
afterwards gets the sum. Sums are float64, in which a few float32 add up exactly except for extremes, so neither
the choice nor the order of the additions matters. Each half is a launch of its own, which makes its stores visible.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import Launch, find_launch


def entry_launch() -> Launch:
    return find_launch("pair_entries")


def entry_grid(rows_N: Tensor) -> tuple[int]:
    """Returns the grid of a kernel with one program per block of entries."""
    return (triton.cdiv(len(rows_N), entry_launch()["BLOCK"]),)


def gather_entries(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor) -> Tensor:
    """Returns the logit of each entry (float32 [N])."""
    before_N = torch.empty(len(rows_N), dtype=torch.float32, device=logits_SV.device)
    gather_kernel[entry_grid(rows_N)](
        logits_SV, rows_N, ids_N, before_N, len(rows_N), logits_SV.shape[1], **entry_launch()
    )
    return before_N


def scatter_entries(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, values_N: Tensor) -> None:
    """Writes the value of each entry over its logit; entries of one pair have the same value."""
    scatter_kernel[entry_grid(rows_N)](
        logits_SV, rows_N, ids_N, values_N, len(rows_N), logits_SV.shape[1], **entry_launch()
    )


def sum_entries(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, values_N: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns each entry's leader (int32 [N]) and the sums of the pairs at their leaders (float64 [N], others 0).

    Without values it counts. It overwrites the logits of the entries, which must have been gathered before.
    """
    leaders_N = torch.empty(len(rows_N), dtype=torch.int32, device=logits_SV.device)
    sums_N = torch.zeros(len(rows_N), dtype=torch.float64, device=logits_SV.device)
    vocab_size = logits_SV.shape[1]
    claim_kernel[entry_grid(rows_N)](logits_SV, rows_N, ids_N, len(rows_N), vocab_size, **entry_launch())
    sum_kernel[entry_grid(rows_N)](
        logits_SV,
        rows_N,
        ids_N,
        sums_N if values_N is None else values_N,
        leaders_N,
        sums_N,
        len(rows_N),
        vocab_size,
        HAS_VALUES=values_N is not None,
        **entry_launch(),
    )
    return leaders_N, sums_N


@triton.jit
def entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK: tl.constexpr):
    """Returns the program's entries, the mask of those that exist, and their pairs' places in the logits (int64)."""
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entries < num_entries
    rows = tl.load(rows_ptr + entries, mask=mask, other=0).to(tl.int64)
    return entries, mask, rows * vocab_size + tl.load(ids_ptr + entries, mask=mask, other=0)


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["logits_ptr"])
def gather_kernel(logits_ptr, rows_ptr, ids_ptr, before_ptr, num_entries, vocab_size, BLOCK: tl.constexpr):
    entries, mask, places = entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK)
    tl.store(before_ptr + entries, tl.load(logits_ptr + places, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["logits_ptr"])
def scatter_kernel(logits_ptr, rows_ptr, ids_ptr, values_ptr, num_entries, vocab_size, BLOCK: tl.constexpr):
    entries, mask, places = entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK)
    tl.store(logits_ptr + places, tl.load(values_ptr + entries, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["logits_ptr"])
def claim_kernel(logits_ptr, rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK: tl.constexpr):
    entries, mask, places = entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK)
    tl.store(logits_ptr + places, entries.to(tl.float32, bitcast=True), mask=mask)


@triton.jit(do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["logits_ptr"])
def sum_kernel(
    logits_ptr,
    rows_ptr,
    ids_ptr,
    values_ptr,
    leaders_ptr,
    sums_ptr,
    num_entries,
    vocab_size,
    BLOCK: tl.constexpr,
    HAS_VALUES: tl.constexpr,
):
    entries, mask, places = entry_places(rows_ptr, ids_ptr, num_entries, vocab_size, BLOCK)
    leaders = tl.load(logits_ptr + places, mask=mask, other=0.0).to(tl.int32, bitcast=True)
    tl.store(leaders_ptr + entries, leaders, mask=mask)
    if HAS_VALUES:
        values = tl.load(values_ptr + entries, mask=mask, other=0.0).to(tl.float64)
    else:
        values = tl.full([BLOCK], 1.0, tl.float64)
    tl.atomic_add(sums_ptr + leaders, values, mask=mask, sem="relaxed")
