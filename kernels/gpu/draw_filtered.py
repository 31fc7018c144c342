"""The Triton kernel of `draw_filtered`: many programs read a row once, then one draws from their candidates.

Shape legend: S rows, N some of them, V vocabulary, C parts of a row, K candidates of a part at most.

The first kernel lists the candidates of each part: its tokens above a floor, chosen so that they fit. The second holds
the candidates of all parts in its registers. Above the highest floor these are all tokens of the row, so the filters'
result is known if it ends there, as it mostly does. Otherwise the row is read again, as often as the search of
`filter_top` takes. Logits take the place of scores up to the draw itself: a temperature does not change their order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.rows import RowDraws
from kernels.gpu.best_token import LARGEST
from kernels.gpu.filter_top import between, find_lane, find_row_threshold
from kernels.gpu.key_blocks import LOG2_E
from kernels.gpu.launch_table import find_launch
from kernels.gpu.noise import exponential_noise, logarithm, row_key

INF = tl.constexpr(float("inf"))
BEYOND = tl.constexpr(0x7FFFFFFF)
NONE = tl.constexpr(-1)
TO_BASE_2 = tl.constexpr(LOG2_E)
FACTS = ("counts_ptr", "floors_ptr", "maxima_ptr", "sums_ptr")
"""They are views of one tensor, so where they begin depends on the number of rows."""

MAX_PARTS = 64
"""The parts of 262,144 tokens. The candidates of more parts do not fit into the registers of one program."""
MAX_TRIES = tl.constexpr(24)
"""Pivots per part. Each halves the remaining range, which is enough to separate floats of any magnitude."""


def draw_filtered(logits_SV: Tensor, rows_N: Tensor, draws: RowDraws) -> Tensor:
    num_rows, vocab_size = len(rows_N), logits_SV.shape[1]
    assert logits_SV.stride(1) == 1 or vocab_size == 1
    assert rows_N.is_contiguous()
    assert all(column.is_contiguous() for column in draws)
    launch, device = find_launch("draw_filtered", vocab_size), logits_SV.device
    num_parts = triton.cdiv(vocab_size, launch["BLOCK"])
    if num_parts > MAX_PARTS:
        return NotImplemented
    num_lanes = num_parts * launch["CANDIDATES"]
    candidates_NCK = torch.empty((num_rows, num_lanes), dtype=torch.float32, device=device)
    tokens_NCK = torch.empty((num_rows, num_lanes), dtype=torch.int32, device=device)
    facts_4NC = torch.empty((4, num_rows, num_parts), dtype=torch.float32, device=device)
    tokens_N = torch.empty(num_rows, dtype=torch.int32, device=device)
    logits = logits_SV, rows_N, draws.temperatures
    found = candidates_NCK, tokens_NCK, *facts_4NC
    candidates_kernel[(num_rows, num_parts)](*logits, *found, logits_SV.stride(0), VOCAB=vocab_size, **launch)
    draw_row_kernel[(num_rows,)](
        *logits,
        *draws[1:],
        *found,
        tokens_N,
        logits_SV.stride(0),
        VOCAB=vocab_size,
        NUM_PARTS=num_parts,
        PARTS_BLOCK=triton.next_power_of_2(num_parts),
        CANDIDATES=launch["CANDIDATES"],
        **find_launch("draw_filtered_row", num_lanes),
    )
    return tokens_N


@triton.jit(do_not_specialize_on_alignment=FACTS)
def candidates_kernel(
    logits_ptr,
    rows_ptr,
    temperatures_ptr,
    candidates_ptr,
    tokens_ptr,
    counts_ptr,
    floors_ptr,
    maxima_ptr,
    sums_ptr,
    row_stride,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Writes a part's candidates, their number (-1: a logit is not finite), the floor, the largest logit, and the sum
    of exp((logit - largest) / temperature)."""
    index, part = tl.program_id(0), tl.program_id(1)
    tokens = part * BLOCK + tl.arange(0, BLOCK)
    mask = tokens < VOCAB
    row_ptr = logits_ptr + tl.load(rows_ptr + index) * row_stride
    x = tl.load(row_ptr + tokens, mask=mask, other=-INF).to(tl.float32)
    # Comparisons with NaN are false.
    is_refused = tl.max((mask & ~(tl.abs(x) < INF)).to(tl.int32), 0) > 0
    best = tl.max(x, 0)
    total = tl.sum(tl.exp2((x - best) * _scale(tl.load(temperatures_ptr + index))), 0)
    # No more than K are above `high`, more than K above `low`.
    low = tl.min(tl.where(mask, x, INF), 0)
    has_room = tl.sum(mask.to(tl.int32), 0) <= CANDIDATES
    high = tl.where(is_refused, INF, tl.where(has_room, -INF, best))
    num_above = tl.where(is_refused | has_room, CANDIDATES, 0)
    num_tries = MAX_TRIES
    while (num_above < CANDIDATES // 2) & (num_tries > 0):
        num_tries -= 1
        pivot = between(low, high)
        count = tl.sum((x > pivot).to(tl.int32), 0)
        fits = count <= CANDIDATES
        high, low = tl.where(fits, pivot, high), tl.where(fits, low, pivot)
        num_above = tl.where(fits, count, num_above)
    is_listed = x > high
    place = index * tl.num_programs(1) + part
    lanes = place * CANDIDATES + tl.cumsum(is_listed.to(tl.int32), 0) - 1
    tl.store(candidates_ptr + lanes, x, mask=is_listed)
    tl.store(tokens_ptr + lanes, tokens, mask=is_listed)
    count = tl.where(is_refused, -1, tl.sum(is_listed.to(tl.int32), 0))
    tl.store(counts_ptr + place, count.to(tl.float32))
    tl.store(floors_ptr + place, high)
    tl.store(maxima_ptr + place, best)
    tl.store(sums_ptr + place, total)


@triton.jit(do_not_specialize_on_alignment=FACTS)
def draw_row_kernel(
    logits_ptr,
    rows_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    candidates_ptr,
    tokens_ptr,
    counts_ptr,
    floors_ptr,
    maxima_ptr,
    sums_ptr,
    out_ptr,
    row_stride,
    VOCAB: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0)
    parts = tl.arange(0, PARTS_BLOCK)
    is_part = parts < NUM_PARTS
    places = index * NUM_PARTS + parts
    if tl.min(tl.load(counts_ptr + places, mask=is_part, other=0.0), 0) < 0.0:
        tl.store(out_ptr + index, NONE)
        return
    floor = tl.max(tl.load(floors_ptr + places, mask=is_part, other=-INF), 0)
    maxima = tl.load(maxima_ptr + places, mask=is_part, other=-INF)
    best = tl.max(maxima, 0)
    temperature = tl.load(temperatures_ptr + index)
    scale = _scale(temperature)
    sums = tl.load(sums_ptr + places, mask=is_part, other=0.0)
    mass = tl.sum(sums * tl.exp2((maxima - best) * scale), 0)

    lane = tl.arange(0, BLOCK)
    count = tl.load(counts_ptr + index * NUM_PARTS + lane // CANDIDATES, mask=lane < NUM_PARTS * CANDIDATES, other=0.0)
    is_listed = lane % CANDIDATES < count
    first = index * NUM_PARTS * CANDIDATES
    x = tl.load(candidates_ptr + first + lane, mask=is_listed, other=-INF)
    x = tl.where(x > floor, x, -INF)
    tokens = tl.load(tokens_ptr + first + lane, mask=is_listed, other=BEYOND)

    # Scores below this one are out by min-p.
    min_p = tl.load(min_ps_ptr + index)
    least_score = tl.where(min_p > 0.0, tl.math.div_rn(best, temperature) + tl.log(min_p), -INF)
    top_k, top_p = tl.load(top_ks_ptr + index), tl.load(top_ps_ptr + index)
    threshold = -INF
    # Whether all tokens that the filters keep are above the floor.
    is_known = (floor == -INF) | (tl.math.div_rn(floor, temperature) < least_score)
    is_mass_known = True
    weights = tl.exp2((x - best) * scale)
    if top_k < VOCAB:
        top_count = top_k.to(tl.float32)
        ones = (x > -INF).to(tl.float32)
        has_enough = tl.sum(ones, 0) >= top_count
        is_mass_known = has_enough | (floor == -INF)
        is_known = is_mass_known
        if has_enough:
            threshold = find_lane(x, ones, top_count, -INF, best)
            # Top-p counts no more equals of the last token than top-k has room for.
            mass = tl.sum(tl.where(x > threshold, weights, 0.0), 0)
            num_equal = top_count - tl.sum(tl.where(x > threshold, ones, 0.0), 0)
            mass += num_equal * tl.exp2((threshold - best) * scale)
    if (top_p < 1.0) & is_mass_known & (tl.sum(weights, 0) >= mass * top_p):
        threshold = find_lane(x, weights, mass * top_p, threshold, best)
        is_known = True
    key = row_key(tl.load(seeds_ptr + index), tl.load(positions_ptr + index))
    if is_known:
        best_value, token = _draw(x, x >= threshold, tokens, key, temperature, least_score)
    else:
        row_ptr = logits_ptr + tl.load(rows_ptr + index) * row_stride
        threshold = find_row_threshold(row_ptr, top_k, top_p, scale, VOCAB, BLOCK)
        best_value = -INF
        token = BEYOND
        for start in range(0, VOCAB, BLOCK):
            some = start + lane
            logits = tl.load(row_ptr + some, mask=some < VOCAB, other=-INF).to(tl.float32)
            is_kept = (some < VOCAB) & (logits >= threshold)
            value, first_token = _draw(logits, is_kept, some, key, temperature, least_score)
            token = tl.where(value > best_value, first_token, token)
            best_value = tl.maximum(value, best_value)
    tl.store(out_ptr + index, token)


@triton.jit
def _scale(temperature):
    """Differences of logits times this are exponents of 2; finite, so that a difference of 0 stays one."""
    return tl.minimum(TO_BASE_2 / temperature, LARGEST)


@triton.jit
def _draw(logits, is_kept, tokens, key, temperature, least_score):
    """Returns the largest of the scores with noise and the first token that has it (see `best_token`)."""
    scores = tl.math.div_rn(logits, temperature)
    values = scores - logarithm(exponential_noise(key, tokens))
    values = tl.where(is_kept & (scores >= least_score), values, -INF)
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, tokens, BEYOND), 0)
