"""The gated delta rule in Triton: one step for decode rows, chunks of tokens in the WY form for prefill rows.

Shape legend: T tokens, H value heads, G key heads, D key size, V value size, X = 2 G D + H V, B = 2 H, N = H V,
S slots; in a program M tokens of a chunk.

With the decay g between tokens, the updates U of a chunk solve (I + A) U = beta (V - g K state), where A_ij =
beta_i g_ij k_i k_j for i > j (Yang, Kautz and Hatamizadeh, 2024, section 3.3). One kernel inverts I + A for all chunks
at once; another then carries each row's state through its chunks, with products alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.gpu.launch_table import find_launch
from kernels.gpu.state_chunks import (
    CHUNK,
    CHUNK_TOKENS,
    MAX_ROW_PROGRAMS,
    advance_state,
    count_tokens_before,
    decay_between,
    end_of_rows,
    find_time_steps,
    load_state,
    multiply,
    precision_of,
    store_state,
)

MAX_CHUNK_PROGRAMS = 16
"""Chunks of a row that are prepared side by side."""

_NORM_EPS = tl.constexpr(1e-6)


def gated_delta(
    qkv_TX: Tensor,
    gates_TB: Tensor,
    decay: StateDecay,
    matrix_SHDV: Tensor,
    rows: StateRows,
    has_tiled_heads: bool,
    out_TN: Tensor,
) -> None:
    num_heads, key_size, value_size = matrix_SHDV.shape[1:]
    num_decode, num_prefill = rows.num_decode_rows, len(rows.prefill_lens)
    num_prefill_tokens = len(qkv_TX) - num_decode
    assert out_TN.is_contiguous()
    inputs = qkv_TX, gates_TB, *decay
    strides = qkv_TX.stride(0), gates_TB.stride(0)
    shape = {
        "NUM_HEADS": num_heads,
        "NUM_KEY_HEADS": (qkv_TX.shape[1] - num_heads * value_size) // (2 * key_size),
        "KEY_SIZE": key_size,
        "VALUE_SIZE": value_size,
        "HAS_TILED_HEADS": has_tiled_heads,
    }
    if num_decode:
        launch = find_launch("gated_delta", key_size, value_size)
        grid = num_decode, num_heads * triton.cdiv(value_size, launch["BLOCK_V"])
        step[grid](*inputs, matrix_SHDV, rows.decode_sources, rows.slots, out_TN, *strides, **shape, **launch)
    if num_prefill_tokens and num_prefill:
        row_programs = min(num_prefill, MAX_ROW_PROGRAMS)
        sizes = num_prefill, num_decode
        launch = find_launch("gated_delta_prepare", key_size)
        products = torch.empty(
            2, num_prefill_tokens, num_heads, CHUNK_TOKENS, dtype=torch.float32, device=qkv_TX.device
        )
        factors = torch.empty(3, num_prefill_tokens, num_heads, dtype=torch.float32, device=qkv_TX.device)
        prepared = *products, *factors, rows.prefill_lens
        precision = precision_of(qkv_TX)
        grid = min(triton.cdiv(num_prefill_tokens, CHUNK_TOKENS), MAX_CHUNK_PROGRAMS), row_programs, num_heads
        prepare[grid](*inputs, *strides, *prepared, *sizes, **shape, PRECISION=precision, **launch)
        launch = find_launch("gated_delta_chunks", key_size)
        grid = num_heads * triton.cdiv(value_size, launch["BLOCK_V"]), row_programs
        states = matrix_SHDV, rows.prefill_sources, rows.slots
        carry[grid](qkv_TX, strides[0], *prepared, *sizes, *states, out_TN, **shape, PRECISION=precision, **launch)


@triton.jit(do_not_specialize=["shortest", "longest"])
def step(
    qkv,
    gates,
    rates,
    biases,
    shortest,
    longest,
    matrix,
    sources,
    slots,
    out,
    qkv_stride,
    gates_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KEY_HEADS: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    HAS_TILED_HEADS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One token of a row, for some values of a head."""
    row = tl.program_id(0)
    head = tl.program_id(1) % NUM_HEADS
    dim_D = tl.arange(0, BLOCK_D)
    value_V = tl.program_id(1) // NUM_HEADS * BLOCK_V + tl.arange(0, BLOCK_V)
    is_D, is_V = dim_D < KEY_SIZE, value_V < VALUE_SIZE
    SLOT_SIZE: tl.constexpr = NUM_HEADS * KEY_SIZE * VALUE_SIZE
    place_DV = (head * KEY_SIZE + dim_D)[:, None] * VALUE_SIZE + value_V[None, :]
    is_DV = is_D[:, None] & is_V[None, :]
    matrix_DV = load_state(matrix, tl.load(sources + row), SLOT_SIZE, place_DV, is_DV)
    qkv += row.to(tl.int64) * qkv_stride
    key_head = find_key_head(head, NUM_HEADS, NUM_KEY_HEADS, HAS_TILED_HEADS)
    query_D = tl.load(qkv + key_head * KEY_SIZE + dim_D, mask=is_D, other=0.0).to(tl.float32)
    key_D = tl.load(qkv + (NUM_KEY_HEADS + key_head) * KEY_SIZE + dim_D, mask=is_D, other=0.0).to(tl.float32)
    query_D *= tl.rsqrt(tl.sum(query_D * query_D) + _NORM_EPS) * KEY_SIZE**-0.5
    key_D *= tl.rsqrt(tl.sum(key_D * key_D) + _NORM_EPS)
    first_value = 2 * NUM_KEY_HEADS * KEY_SIZE + head * VALUE_SIZE
    value = tl.load(qkv + first_value + value_V, mask=is_V, other=0.0).to(tl.float32)
    gates += row.to(tl.int64) * gates_stride + head
    beta, log = load_gates(gates, rates + head, biases + head, shortest, longest, NUM_HEADS, None)
    matrix_DV *= tl.exp(log)
    update_V = beta * (value - tl.sum(matrix_DV * key_D[:, None], 0))
    matrix_DV += key_D[:, None] * update_V[None, :]
    out_V = tl.sum(matrix_DV * query_D[:, None], 0)
    out += row.to(tl.int64) * (NUM_HEADS * VALUE_SIZE) + head * VALUE_SIZE
    tl.store(out + value_V, out_V.to(out.dtype.element_ty), mask=is_V)
    store_state(matrix, matrix_DV, tl.load(slots + row), SLOT_SIZE, place_DV, is_DV)


@triton.jit(do_not_specialize=["shortest", "longest", "num_rows", "num_decode"])
def prepare(
    qkv,
    gates,
    rates,
    biases,
    shortest,
    longest,
    qkv_stride,
    gates_stride,
    inverses,
    scores,
    logs,
    query_scales,
    key_scales,
    lens,
    num_rows,
    num_decode,
    NUM_HEADS: tl.constexpr,
    NUM_KEY_HEADS: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    HAS_TILED_HEADS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Writes what `carry` needs of each prefill token and head: with a place for each token of its chunk, the inverse
    of I + A times beta, and query times key, masked and decayed; the logarithm of the decay since the chunk's
    beginning; and what makes the lengths of query and key 1."""
    head = tl.program_id(2)
    key_head = find_key_head(head, NUM_HEADS, NUM_KEY_HEADS, HAS_TILED_HEADS)
    index_M = tl.arange(0, CHUNK)
    for row in range(tl.program_id(1), end_of_rows(lens, num_rows), tl.num_programs(1)):
        num_tokens, first = tl.load(lens + row), count_tokens_before(lens, row)
        for start in range(tl.program_id(0) * CHUNK, num_tokens, tl.num_programs(0) * CHUNK):
            token_M, is_M = first + start + index_M, start + index_M < num_tokens
            qkv_M = (num_decode + token_M) * qkv_stride
            gates_M = gates + (num_decode + token_M) * gates_stride + head
            beta_M, log_M = load_gates(gates_M, rates + head, biases + head, shortest, longest, NUM_HEADS, is_M)
            log_M = tl.cumsum(log_M)
            place_M = token_M * NUM_HEADS + head
            place_MM = place_M[:, None] * CHUNK + index_M[None, :]
            key_MD = load_heads(qkv, qkv_M, is_M, NUM_KEY_HEADS + key_head, KEY_SIZE, BLOCK_D)
            key_scale_M = find_scale(key_MD)
            decay_MM = decay_between(log_M) * key_scale_M[None, :]
            query_MD = load_heads(qkv, qkv_M, is_M, key_head, KEY_SIZE, BLOCK_D)
            query_scale_M = find_scale(query_MD) * KEY_SIZE**-0.5
            score_MM = tl.dot(query_MD, tl.trans(key_MD), input_precision=PRECISION) * decay_MM
            tl.store(scores + place_MM, score_MM * query_scale_M[:, None], mask=is_M[:, None])
            tl.store(query_scales + place_M, query_scale_M, mask=is_M)
            tl.store(key_scales + place_M, key_scale_M, mask=is_M)
            tl.store(logs + place_M, log_M, mask=is_M)
            coupling_MM = tl.dot(key_MD, tl.trans(key_MD), input_precision=PRECISION) * decay_MM
            inverse_MM = invert_unit(coupling_MM * (beta_M * key_scale_M)[:, None], PRECISION)
            tl.store(inverses + place_MM, inverse_MM * beta_M[None, :], mask=is_M[:, None])


@triton.jit(do_not_specialize=["num_rows", "num_decode"])
def carry(
    qkv,
    qkv_stride,
    inverses,
    scores,
    logs,
    query_scales,
    key_scales,
    lens,
    num_rows,
    num_decode,
    matrix,
    sources,
    slots,
    out,
    NUM_HEADS: tl.constexpr,
    NUM_KEY_HEADS: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    HAS_TILED_HEADS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Carries the state of rows through their chunks, for some values of a head."""
    head = tl.program_id(0) % NUM_HEADS
    key_head = find_key_head(head, NUM_HEADS, NUM_KEY_HEADS, HAS_TILED_HEADS)
    index_M, dim_D = tl.arange(0, CHUNK), tl.arange(0, BLOCK_D)
    value_V = tl.program_id(0) // NUM_HEADS * BLOCK_V + tl.arange(0, BLOCK_V)
    is_V = value_V < VALUE_SIZE
    SLOT_SIZE: tl.constexpr = NUM_HEADS * KEY_SIZE * VALUE_SIZE
    place_DV = (head * KEY_SIZE + dim_D)[:, None] * VALUE_SIZE + value_V[None, :]
    is_DV = (dim_D < KEY_SIZE)[:, None] & is_V[None, :]
    for row in range(tl.program_id(1), end_of_rows(lens, num_rows), tl.num_programs(1)):
        num_tokens, first = tl.load(lens + row), count_tokens_before(lens, row)
        matrix_DV = load_state(matrix, tl.load(sources + row), SLOT_SIZE, place_DV, is_DV)
        for start in range(0, num_tokens, CHUNK):
            token_M, is_M = first + start + index_M, start + index_M < num_tokens
            qkv_M = (num_decode + token_M) * qkv_stride
            place_M = token_M * NUM_HEADS + head
            place_MM = place_M[:, None] * CHUNK + index_M[None, :]
            is_MV = is_M[:, None] & is_V[None, :]
            log_M = tl.load(logs + place_M, mask=is_M, other=0.0)
            kept_M = tl.exp(log_M)
            key_scale_M = tl.load(key_scales + place_M, mask=is_M, other=0.0)
            key_MD = load_heads(qkv, qkv_M, is_M, NUM_KEY_HEADS + key_head, KEY_SIZE, BLOCK_D)
            first_value = 2 * NUM_KEY_HEADS * KEY_SIZE + head * VALUE_SIZE
            value_MV = tl.load(qkv + qkv_M[:, None] + first_value + value_V[None, :], mask=is_MV, other=0.0)
            zeros_MV = tl.zeros([CHUNK, BLOCK_V], tl.float32)
            held_MV = multiply(key_MD, matrix_DV, zeros_MV) * (key_scale_M * kept_M)[:, None]
            inverse_MM = tl.load(inverses + place_MM, mask=is_M[:, None], other=0.0)
            update_MV = tl.dot(inverse_MM, value_MV.to(tl.float32) - held_MV, input_precision=PRECISION)
            query_MD = load_heads(qkv, qkv_M, is_M, key_head, KEY_SIZE, BLOCK_D)
            query_scale_M = tl.load(query_scales + place_M, mask=is_M, other=0.0)
            out_MV = multiply(query_MD, matrix_DV, zeros_MV) * (query_scale_M * kept_M)[:, None]
            score_MM = tl.load(scores + place_MM, mask=is_M[:, None], other=0.0)
            out_MV = tl.dot(score_MM, update_MV, out_MV, input_precision=PRECISION)
            out_M = ((num_decode + token_M) * NUM_HEADS + head) * VALUE_SIZE
            tl.store(out + out_M[:, None] + value_V[None, :], out_MV.to(out.dtype.element_ty), mask=is_MV)
            matrix_DV = advance_state(
                matrix,
                matrix_DV,
                key_MD,
                update_MV,
                log_M,
                key_scale_M,
                tl.load(slots + num_decode + token_M, mask=is_M, other=-1),
                tl.minimum(num_tokens - start, CHUNK) - 1,
                place_DV,
                is_DV,
                SLOT_SIZE,
            )


@triton.jit
def find_key_head(head, NUM_HEADS: tl.constexpr, NUM_KEY_HEADS: tl.constexpr, HAS_TILED_HEADS: tl.constexpr):
    return head % NUM_KEY_HEADS if HAS_TILED_HEADS else head // (NUM_HEADS // NUM_KEY_HEADS)


@triton.jit
def load_heads(qkv, place_M, is_M, head, KEY_SIZE: tl.constexpr, BLOCK_D: tl.constexpr):
    """Returns a query or key head of each token as it is, [M, D]."""
    dim_D = tl.arange(0, BLOCK_D)
    is_MD = is_M[:, None] & (dim_D < KEY_SIZE)[None, :]
    return tl.load(qkv + place_M[:, None] + head * KEY_SIZE + dim_D[None, :], mask=is_MD, other=0.0)


@triton.jit
def find_scale(head_MD):
    """Returns what makes the length of a token's head 1, [M]."""
    wide_MD = head_MD.to(tl.float32)
    return tl.rsqrt(tl.sum(wide_MD * wide_MD, 1) + _NORM_EPS)


@triton.jit
def load_gates(gates, rate, bias, shortest, longest, NUM_HEADS: tl.constexpr, mask):
    """Returns beta and the logarithm of the decay before a token: 0 for tokens that are masked."""
    beta = tl.sigmoid(tl.load(gates, mask=mask).to(tl.float32))
    time = tl.load(gates + NUM_HEADS, mask=mask)
    log = tl.load(rate) * find_time_steps(time, tl.load(bias), shortest, longest)
    if mask is not None:
        beta, log = tl.where(mask, beta, 0.0), tl.where(mask, log, 0.0)
    return beta, log


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
