"""What the Triton kernels of recurrent states share: rows of a step, time steps, the state after tokens of a chunk.

Shape legend: M tokens of a chunk, D size of keys, V values of a program, S slots.

A row is computed in chunks that begin at its first token, so its results do not depend on the other rows of the step.
Grids depend on the shape of a step alone: in a captured step, programs find out which rows have tokens.
"""

import triton
import triton.language as tl

MAX_ROW_PROGRAMS = 16
"""Rows that are computed side by side; a program takes every 16th. More would be idle in most captured steps."""

CHUNK_TOKENS = 64
CHUNK = tl.constexpr(CHUNK_TOKENS)
"""M: a warp group's products have 64 rows."""

_BLOCK_R = tl.constexpr(256)


@triton.jit
def end_of_rows(lens, num_rows):
    """Returns the number of rows without those after the last one with tokens."""
    end = 0
    for first in range(0, num_rows, _BLOCK_R):
        row_R = first + tl.arange(0, _BLOCK_R)
        len_R = tl.load(lens + row_R, mask=row_R < num_rows, other=0)
        end = tl.maximum(end, tl.max(tl.where(len_R > 0, row_R + 1, 0)))
    return end


@triton.jit
def count_tokens_before(lens, row):
    """Returns the number of tokens of the rows before this one (int64)."""
    total = 0
    for first in range(0, row, _BLOCK_R):
        row_R = first + tl.arange(0, _BLOCK_R)
        total += tl.sum(tl.load(lens + row_R, mask=row_R < row, other=0))
    return total.to(tl.int64)


@triton.jit
def find_time_steps(time, bias, shortest, longest):
    """Returns softplus(time + bias), clamped; small ones are exact, as the logarithm allows for the rounding of 1 + e.

    Kahan's method, as in Higham, "Accuracy and Stability of Numerical Algorithms", section 1.14.1.
    """
    x = time.to(tl.float32) + bias
    e = tl.exp(-tl.abs(x))
    rounded = 1.0 + e
    log = tl.where(rounded == 1.0, e, tl.log(rounded) * (e / tl.where(rounded == 1.0, 1.0, rounded - 1.0)))
    return tl.minimum(tl.maximum(tl.maximum(x, 0.0) + log, shortest), longest)


@triton.jit
def decay_between(log_M):
    """Returns exp(log_i - log_j) for tokens i >= j as [M, M], else 0; `log_M` are sums of logarithms."""
    index_M = tl.arange(0, CHUNK)
    return tl.exp(tl.where(index_M[:, None] >= index_M[None, :], log_M[:, None] - log_M[None, :], float("-inf")))


@triton.jit
def multiply(a, wide, sums):
    """Returns `sums` plus the product of activations and float32, which is split into halves of the same type."""
    if a.dtype == tl.float32:
        return tl.dot(a, wide, sums, input_precision="tf32x3")
    upper = wide.to(a.dtype)
    sums = tl.dot(a, (wide - upper.to(tl.float32)).to(a.dtype), sums)
    return tl.dot(a, upper, sums)


@triton.jit
def invert_unit(lower_MM, PRECISION: tl.constexpr):
    """Returns the inverse of I + the part of a matrix below its diagonal, from blocks that double in size.

    [[P, 0], [Q, R]] has the inverse [[P', 0], [-R' Q P', R']]. Powers of the matrix, which other methods add up, can be
    a billion times as large as the inverse.
    """
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    inverse_MM = tl.where(row == column, 1.0, tl.where((row // 2 == column // 2) & (row > column), -lower_MM, 0.0))
    for level in range(1, 6):
        is_pair = (row >> (level + 1) == column >> (level + 1)) & (row >> level > column >> level)
        product_MM = tl.dot(inverse_MM, tl.where(is_pair, lower_MM, 0.0), input_precision=PRECISION)
        inverse_MM -= tl.dot(product_MM, inverse_MM, input_precision=PRECISION)
    return inverse_MM


@triton.jit
def load_state(states, slot, SLOT_SIZE: tl.constexpr, place_DV, is_DV):
    """Returns the state in a slot, zeros for slot -1; no thread has stored into the slot before all have read."""
    state_DV = tl.zeros(place_DV.shape, tl.float32)
    if slot >= 0:
        state_DV = tl.load(states + slot.to(tl.int64) * SLOT_SIZE + place_DV, mask=is_DV, other=0.0)
    tl.debug_barrier()
    return state_DV


@triton.jit
def store_state(states, state_DV, slot, SLOT_SIZE: tl.constexpr, place_DV, is_DV):
    """No-op for slot -1."""
    if slot >= 0:
        tl.store(states + slot.to(tl.int64) * SLOT_SIZE + place_DV, state_DV, mask=is_DV)


@triton.jit
def advance_state(
    states,
    state_DV,
    key_MD,
    update_MV,
    log_M,
    factor_M,
    slot_M,
    last,
    place_DV,
    is_DV,
    SLOT_SIZE: tl.constexpr,
):
    """Stores the states after the tokens of a chunk that have a slot; returns the state after token `last`.

    The state after token i is exp(log_i) * state + the sum over j <= i of exp(log_i - log_j) * factor_j * k_j u_jᵀ.
    """
    index_M = tl.arange(0, CHUNK)
    after_DV = state_DV
    end = -1
    while end < last:
        end = tl.min(tl.where((index_M > end) & ((slot_M >= 0) | (index_M == last)), index_M, last))
        log = tl.sum(tl.where(index_M == end, log_M, 0.0))
        weight_M = tl.exp(tl.where(index_M <= end, log - log_M, float("-inf"))) * factor_M
        after_DV = multiply(tl.trans(key_MD), update_MV * weight_M[:, None], state_DV * tl.exp(log))
        slot = tl.sum(tl.where(index_M == end, slot_M, 0))
        store_state(states, after_DV, slot, SLOT_SIZE, place_DV, is_DV)
    return after_DV
