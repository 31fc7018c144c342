"""The Triton kernel of `filter_top`: a search for the lowest score that is kept, in place of a sort.

Shape legend: S rows, V vocabulary.
One program a row reads it several times, mostly from the L2 cache. A pass tries one pivot: how many tokens and how much
probability lie above it, and which scores are its neighbours. The kept tokens are all those from some token's score up.
So the search ends on a score of the row, and equals of the last token kept are kept too, as in the reference. (Pivots
in place of a sort: FlashInfer, "Sorting-Free GPU Kernels for LLM Sampling", 2025; here the neighbours make the end
exact.)

Most passes are avoided: the row's maxima over V / BLOCK tokens each, one per lane, are tokens too. The threshold of the
best k of them, or of those that hold the nucleus, is a lower bound, and mostly the result.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.key_blocks import LOG2_E
from kernels.gpu.launch_table import find_launch

INF = tl.constexpr(float("inf"))
TO_BASE_2 = tl.constexpr(LOG2_E)


def filter_top(scores_SV: Tensor, top_ks_S: Tensor, top_ps_S: Tensor) -> None:
    num_rows, vocab_size = scores_SV.shape
    assert scores_SV.is_contiguous()
    assert top_ks_S.is_contiguous()
    assert top_ps_S.is_contiguous()
    filter_top_kernel[(num_rows,)](
        scores_SV, top_ks_S, top_ps_S, VOCAB=vocab_size, **find_launch("filter_top", vocab_size)
    )


@triton.jit(do_not_specialize_on_alignment=["top_ks_ptr", "top_ps_ptr"])
def filter_top_kernel(scores_ptr, top_ks_ptr, top_ps_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    row_ptr = scores_ptr + row.to(tl.int64) * VOCAB
    top_k, top_p = tl.load(top_ks_ptr + row), tl.load(top_ps_ptr + row)
    if (top_k < VOCAB) | (top_p < 1.0):
        _cut(row_ptr, find_row_threshold(row_ptr, top_k, top_p, TO_BASE_2, VOCAB, BLOCK), VOCAB, BLOCK)


@triton.jit
def find_row_threshold(row_ptr, top_k, top_p, scale, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the smallest score that top-k and then top-p keep, -inf if they keep all tokens.

    Scores may be logits in place of logits over temperature: 2 to the power of their differences times `scale` are then
    the weights of tokens.
    """
    threshold = -INF
    lanes = _lane_maxima(row_ptr, VOCAB, BLOCK)
    best = tl.max(lanes, 0)
    # A row with NaN or inf is refused anyway; without a finite score there is nothing to filter.
    if (best < INF) & (best > -INF):
        count, mass, _, threshold = _measure(row_ptr, -INF, best, scale, VOCAB, BLOCK)
        if top_k < count:
            top_count = top_k.to(tl.float32)
            threshold = _find_threshold(row_ptr, lanes, top_count, threshold, best, scale, VOCAB, BLOCK, False)
            count, mass, _, _ = _measure(row_ptr, threshold, best, scale, VOCAB, BLOCK)
            # Top-p counts no more equals of the last token than top-k has room for.
            mass += (top_count - count) * tl.exp2((threshold - best) * scale)
        if top_p < 1.0:
            threshold = _find_threshold(row_ptr, lanes, mass * top_p, threshold, best, scale, VOCAB, BLOCK, True)
    return threshold


@triton.jit
def _lane_maxima(row_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.full([BLOCK], -INF, tl.float32)
    for start in range(0, VOCAB, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        lanes = tl.maximum(lanes, tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=-INF).to(tl.float32))
    return lanes


@triton.jit
def _measure(row_ptr, pivot, best, scale, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """How many scores are above the pivot, the sum of their weights, and the scores next to the pivot: the largest that
    is not above it, the smallest that is."""
    count, mass = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    below, above = tl.full([BLOCK], -INF, tl.float32), tl.full([BLOCK], INF, tl.float32)
    for start in range(0, VOCAB, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=-INF).to(tl.float32)
        is_above = x > pivot
        count += is_above.to(tl.float32)
        mass += tl.where(is_above, tl.exp2((x - best) * scale), 0.0)
        below = tl.maximum(below, tl.where(x <= pivot, x, -INF))
        above = tl.minimum(above, tl.where(is_above, x, INF))
    return tl.sum(count, 0), tl.sum(mass, 0), tl.max(below, 0), tl.min(above, 0)


@triton.jit
def _find_threshold(
    row_ptr, lanes, target, low, best, scale, VOCAB: tl.constexpr, BLOCK: tl.constexpr, BY_MASS: tl.constexpr
):
    """Returns the smallest score of the row, not below `low`, above which there is less than the target."""
    weights = tl.exp2((lanes - best) * scale) if BY_MASS else (lanes > -INF).to(tl.float32)
    if tl.sum(weights, 0) >= target:
        # Lanes are scores of the row: if the lanes above a score reach the target, so does the row.
        low = tl.maximum(low, find_lane(lanes, weights, target, -INF, best))
    high = best
    pivot = low
    while low < high:
        count, mass, below, above = _measure(row_ptr, pivot, best, scale, VOCAB, BLOCK)
        is_enough = (mass if BY_MASS else count) < target
        high = tl.where(is_enough, below, high)
        low = tl.where(is_enough, low, above)
        pivot = between(low, high)
    return high


@triton.jit
def find_lane(lanes, weights, target, low, best):
    """Returns the smallest lane, not below `low`, above which the weights are less than the target.

    All lanes together must reach the target; lanes of -inf have no weight.
    """
    low = tl.min(tl.where((lanes > -INF) & (lanes >= low), lanes, INF), 0)
    high = best
    pivot = low
    while low < high:
        is_enough = tl.sum(tl.where(lanes > pivot, weights, 0.0), 0) < target
        below = tl.max(tl.where(lanes <= pivot, lanes, -INF), 0)
        above = tl.min(tl.where(lanes > pivot, lanes, INF), 0)
        high = tl.where(is_enough, below, high)
        low = tl.where(is_enough, low, above)
        pivot = between(low, high)
    return high


@triton.jit
def between(low, high):
    """Returns a pivot not below `low` and below `high`, so that each pivot excludes some score."""
    pivot = low * 0.5 + high * 0.5
    return tl.where((pivot >= low) & (pivot < high), pivot, low)


@triton.jit
def _cut(row_ptr, threshold, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(0, VOCAB, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=INF)
        tl.store(row_ptr + tokens, tl.full([BLOCK], -INF, tl.float32), mask=x < threshold)
