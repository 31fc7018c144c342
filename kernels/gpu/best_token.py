"""The kernels of `greedy`, `sample` and `draw`: the best token of each part of a row, then the best of the parts.

Shape legend: S rows, V vocabulary, C parts of a row. A part is one block of one program, so that many
multiprocessors read a single row of a large vocabulary; the grid is a function of the shape alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch
from kernels.gpu.noise import exponential_noise, least_log_noise, logarithm, row_key

INF, LARGEST = tl.constexpr(float("inf")), tl.constexpr(3.4e38)
NONE = tl.constexpr(-1)
MAX_TRIES, MAX_PIECE = tl.constexpr(8), tl.constexpr(512)
BEYOND = tl.constexpr(0x7FFFFFFF)
"""An index beyond all tokens: the part has no best token because all its values are NaN."""


def find_best(logits_SV: Tensor, draws: tuple[Tensor | None, Tensor, Tensor] | None) -> Tensor:
    """Returns the best token of each row (int32). `draws`: temperatures, seeds and positions of the noise to add.

    Without temperatures, `logits_SV` are scores, -inf for filtered tokens. With temperatures or without draws, a row
    with a logit that is not finite gets -1. A row of temperature 0 is not drawn.
    """
    num_rows, vocab_size = logits_SV.shape
    assert logits_SV.stride(1) == 1 or vocab_size == 1
    operation = "greedy" if draws is None else "sample" if draws[0] is None else "draw"
    launch = find_launch(operation, vocab_size)
    num_parts = triton.cdiv(vocab_size, launch["BLOCK"])
    values_SC = torch.empty((num_rows, num_parts), dtype=torch.float32, device=logits_SV.device)
    tokens_SC = torch.empty((num_rows, num_parts), dtype=torch.int32, device=logits_SV.device)
    temperatures_S, seeds_S, positions_S = draws or (None, tokens_SC, tokens_SC)
    assert seeds_S.is_contiguous()
    assert positions_S.is_contiguous()
    assert temperatures_S is None or temperatures_S.is_contiguous()
    best_of_part_kernel[(num_rows, num_parts)](
        logits_SV,
        values_SC if temperatures_S is None else temperatures_S,
        seeds_S,
        positions_S,
        values_SC,
        tokens_SC,
        logits_SV.stride(0),
        VOCAB=vocab_size,
        IS_DRAWN=draws is not None,
        HAS_LOGITS=draws is None or temperatures_S is not None,
        **launch,
    )
    return best_of_parts(values_SC, tokens_SC, vocab_size)


def best_of_parts(values_SC: Tensor, tokens_SC: Tensor, vocab_size: int) -> Tensor:
    """Returns each row's token of the largest value, the first of equals, or -1 if it is one of the tokens (int32)."""
    num_rows, num_parts = values_SC.shape
    tokens_S = torch.empty(num_rows, dtype=torch.int32, device=values_SC.device)
    launch = find_launch("best_of_row", num_parts)
    best_of_row_kernel[(num_rows,)](values_SC, tokens_SC, tokens_S, NUM_PARTS=num_parts, VOCAB=vocab_size, **launch)
    return tokens_S


@triton.jit(do_not_specialize_on_alignment=["seeds_ptr", "positions_ptr"])
def best_of_part_kernel(
    logits_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    values_ptr,
    tokens_ptr,
    row_stride,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DRAWN: tl.constexpr,
    HAS_LOGITS: tl.constexpr,
):
    row, part = tl.program_id(0), tl.program_id(1)
    tokens = part * BLOCK + tl.arange(0, BLOCK)
    mask = tokens < VOCAB
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    x = tl.load(row_ptr + tokens, mask=mask, other=-INF).to(tl.float32)
    # Comparisons with NaN are false.
    is_finite = tl.abs(x) < INF
    if IS_DRAWN:
        temperature = tl.load(temperatures_ptr + row) if HAS_LOGITS else 1.0
        if temperature > 0:
            key = row_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
            best, first = _draw(row_ptr, key, x, part * BLOCK, temperature, VOCAB, BLOCK, HAS_LOGITS)
        else:
            best, first = _largest(x, tokens, mask)
    else:
        best, first = _largest(x, tokens, mask)
    if HAS_LOGITS:
        first = tl.where(tl.max((mask & ~is_finite).to(tl.int32), 0) > 0, NONE, first)
    place = row * tl.num_programs(1) + part
    tl.store(values_ptr + place, best)
    tl.store(tokens_ptr + place, first)


@triton.jit
def _largest(x, tokens, mask):
    best = tl.max(x, 0)
    return best, tl.min(tl.where(mask & (x == best), tokens, BEYOND), 0)


@triton.jit
def _draw(
    row_ptr, key, x, part_start, temperature, VOCAB: tl.constexpr, BLOCK: tl.constexpr, HAS_TEMPERATURE: tl.constexpr
):
    """Returns the largest of the scores with noise, and the first token that has it; where all are -inf the first.

    The Gumbel-max trick: minus the logarithm of an exponential draw is a Gumbel draw (Maddison et al., 2014). All get a
    bound that takes few instructions. Then the token with the largest bound is computed, and so on until no bound
    reaches what has been found: mostly after one. Where the rounding of large scores hides the noise, many do, and all
    are computed, a piece at a time.
    """
    PIECE: tl.constexpr = BLOCK if BLOCK < MAX_PIECE else MAX_PIECE
    tokens = part_start + tl.arange(0, BLOCK)
    bounds = least_log_noise(key, tokens)
    bounds = x * tl.minimum(1.0 / temperature, LARGEST) - bounds if HAS_TEMPERATURE else x - bounds
    best = -INF
    first = part_start
    least = -INF
    largest = tl.max(bounds, 0)
    num_left = MAX_TRIES
    while (largest > -INF) & (largest >= least) & (num_left > 0):
        num_left -= 1
        token = tl.min(tl.where(bounds == largest, tokens, BEYOND), 0)
        value = _value(tl.load(row_ptr + token), key, token, temperature, HAS_TEMPERATURE)
        first = tl.where((value > best) | ((value == best) & (token < first)), token, first)
        best = tl.maximum(best, value)
        # Bounds may be too small by the rounding of scores, which are as large as the sum without the noise.
        least = best - 1e-6 * (tl.abs(best) + 64.0)
        bounds = tl.where(tokens == token, -INF, bounds)
        largest = tl.max(bounds, 0)
    if (largest > -INF) & (largest >= least):
        best = -INF
        for start in range(part_start, part_start + BLOCK, PIECE):
            some = start + tl.arange(0, PIECE)
            logits = tl.load(row_ptr + some, mask=some < VOCAB, other=-INF)
            values = _value(logits, key, some, temperature, HAS_TEMPERATURE)
            value_of_piece, token_of_piece = _largest(values, some, some < VOCAB)
            first = tl.where(value_of_piece > best, token_of_piece, first)
            best = tl.maximum(best, value_of_piece)
    return best, first


@triton.jit
def _value(logits, key, tokens, temperature, HAS_TEMPERATURE: tl.constexpr):
    scores = logits.to(tl.float32)
    if HAS_TEMPERATURE:
        scores = tl.math.div_rn(scores, temperature)
    return scores - logarithm(exponential_noise(key, tokens))


@triton.jit
def best_of_row_kernel(
    values_ptr, tokens_ptr, out_ptr, NUM_PARTS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    parts = tl.arange(0, BLOCK)
    mask = parts < NUM_PARTS
    values = tl.load(values_ptr + row * NUM_PARTS + parts, mask=mask, other=float("-inf"))
    tokens = tl.load(tokens_ptr + row * NUM_PARTS + parts, mask=mask, other=BEYOND)
    is_refused = tl.min(tokens, 0) == NONE
    token = tl.min(tl.where(values == tl.max(values, 0), tokens, BEYOND), 0)
    # A row of scores that are no numbers has any token: its caller knows it.
    token = tl.where(is_refused, NONE, tl.minimum(token, VOCAB - 1))
    tl.store(out_ptr + row, token)
