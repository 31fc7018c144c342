"""The Triton kernels of states that are matrices: one step for decode rows, chunks of tokens for prefill rows. With
fixed launches all rows are computed step by step, by one kernel.

Shape legend: T tokens, H heads, D size of keys, V size of values, S slots; in a program M tokens of a chunk.

Both the gated delta rule and Mamba-2 are linear attention with decay: a state is the sum of k uᵀ over the tokens so
far, and a token's output is its query times the state. In Mamba-2 (C, B and x are query, key and value) the update u is
dt * value, and a chunk is attention without softmax (Dao and Gu, 2024, section 6). With the delta rule, the updates U
of a chunk depend on each other: (I + A) U = beta (V - g K state), where A_ij = beta_i g_ij k_i k_j for i > j, and g is
the decay between tokens (the WY form: Yang, Kautz and Hatamizadeh, 2024, section 3.3). `prepare` computes what does not
depend on states, for all chunks at once; `carry` then takes each row's state through its chunks, with products alone.

These kernels run in Triton's interpreter and compile for Hopper; no GPU has run them yet.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.state_rows import StateRows
from kernels.gpu.launch_table import find_launch, has_fixed_launches
from kernels.gpu.state_chunks import (
    CHUNK,
    CHUNK_TOKENS,
    MAX_ROW_PROGRAMS,
    advance_state,
    count_tokens_before,
    decay_between,
    end_of_rows,
    find_time_steps,
    invert_unit,
    load_state,
    multiply,
    store_state,
)

MAX_CHUNK_PROGRAMS = 16
"""Chunks of a row that are prepared side by side."""

_NORM_EPS = tl.constexpr(1e-6)


class StateForm(NamedTuple):
    """What the kernels are compiled for."""

    num_heads: int
    num_key_heads: int
    key_size: int
    value_size: int
    query_at: int
    """Where the queries of a token begin among its inputs, as do keys and values."""
    key_at: int
    value_at: int
    has_delta: bool
    """The gated delta rule, with states [D, V]; else Mamba-2, with states [V, D]."""
    has_tiled_heads: bool = False
    """Head h has key head h modulo their number; else neighbours have the same."""


class HeadGates(NamedTuple):
    """Numbers of each token and head [T, H], whose rows may lie apart, and of each head [H]."""

    betas: Tensor
    """Before the sigmoid; read with the delta rule only."""
    times: Tensor
    rates: Tensor
    biases: Tensor
    shortest: float
    longest: float


def compute_states(
    form: StateForm, inputs: Tensor, gates: HeadGates, skips_H: Tensor, states: Tensor, rows: StateRows, out_TN: Tensor
) -> None:
    """`skips_H` are read without the delta rule only. Rows of `inputs` may lie apart."""
    is_fixed = has_fixed_launches()
    rows = rows.as_prefill_rows if is_fixed else rows
    num_decode, num_prefill = rows.num_decode_rows, len(rows.prefill_lens)
    num_tokens, key_size = len(inputs) - num_decode, form.key_size
    assert gates.betas.stride() == gates.times.stride()
    assert all(operand.is_contiguous() for operand in (skips_H, gates.rates, gates.biases, out_TN))
    tokens = inputs, inputs.stride(0)
    gated = *tokens, *gates, gates.times.stride(0)
    stored = skips_H, states, rows.slots, out_TN
    if num_decode or is_fixed:
        launch = find_launch("state_step", key_size, form.value_size)
        grid = num_prefill if is_fixed else num_decode, form.num_heads * triton.cdiv(form.value_size, launch["BLOCK_V"])
        sources = rows.prefill_sources if is_fixed else rows.decode_sources
        step[grid](*gated, *stored, sources, rows.prefill_lens, FORM=form, HAS_LENS=is_fixed, **launch)
    if num_tokens and num_prefill and not is_fixed:
        wide: Any = {"dtype": torch.float32, "device": inputs.device}
        products = torch.empty(2 if form.has_delta else 1, num_tokens, form.num_heads, CHUNK_TOKENS, **wide)
        factors = torch.empty(3, num_tokens, form.num_heads, **wide)
        prepared = products[0], products[-1], *factors, rows.prefill_lens, num_prefill, num_decode
        constants: Any = {"FORM": form, "PRECISION": "tf32x3" if inputs.dtype == torch.float32 else "bf16x3"}
        row_programs = min(num_prefill, MAX_ROW_PROGRAMS)
        grid = min(triton.cdiv(num_tokens, CHUNK_TOKENS), MAX_CHUNK_PROGRAMS), row_programs, form.num_heads
        prepare[grid](*gated, *prepared, **constants, **find_launch("state_prepare", key_size))
        launch = find_launch("state_carry", key_size)
        grid = form.num_heads * triton.cdiv(form.value_size, launch["BLOCK_V"]), row_programs
        carry[grid](*tokens, *prepared, *stored, rows.prefill_sources, **constants, **launch)


@triton.jit(do_not_specialize=["shortest", "longest"], do_not_specialize_on_alignment=["lens"])
def step(
    inputs,
    input_stride,
    betas,
    times,
    rates,
    biases,
    shortest,
    longest,
    time_stride,
    skips,
    states,
    slots,
    out,
    sources,
    lens,
    FORM: tl.constexpr,
    HAS_LENS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """The tokens of a row, one unless it HAS_LENS, for some values of a head."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1) % FORM.num_heads
    dim_D = tl.arange(0, BLOCK_D)
    value_V = tl.program_id(1) // FORM.num_heads * BLOCK_V + tl.arange(0, BLOCK_V)
    is_D, is_V = dim_D < FORM.key_size, value_V < FORM.value_size
    place_DV, is_DV = place_state(head, dim_D, value_V, FORM), is_D[:, None] & is_V[None, :]
    SLOT_SIZE: tl.constexpr = FORM.num_heads * FORM.key_size * FORM.value_size
    state_DV = load_state(states, tl.load(sources + row), SLOT_SIZE, place_DV, is_DV)
    key_place_D = find_key_head(head, FORM) * FORM.key_size + dim_D
    value_place_V = FORM.value_at + head * FORM.value_size + value_V
    first, num_tokens = row, 1
    if HAS_LENS:
        first, num_tokens = count_tokens_before(lens, tl.program_id(0)), tl.load(lens + row)
    for token in range(first, first + num_tokens):
        input_place = inputs + token * input_stride
        query_D = tl.load(input_place + FORM.query_at + key_place_D, mask=is_D, other=0.0).to(tl.float32)
        key_D = tl.load(input_place + FORM.key_at + key_place_D, mask=is_D, other=0.0).to(tl.float32)
        value_V1 = tl.load(input_place + value_place_V, mask=is_V, other=0.0).to(tl.float32)
        time_place = token * time_stride + head
        time_step = find_time_steps(tl.load(times + time_place), tl.load(biases + head), shortest, longest)
        state_DV *= tl.exp(tl.load(rates + head) * time_step)
        if FORM.has_delta:
            query_D *= tl.rsqrt(tl.sum(query_D * query_D) + _NORM_EPS) * FORM.key_size**-0.5
            key_D *= tl.rsqrt(tl.sum(key_D * key_D) + _NORM_EPS)
            beta = tl.sigmoid(tl.load(betas + time_place).to(tl.float32))
            update_V = beta * (value_V1 - tl.sum(state_DV * key_D[:, None], 0))
        else:
            update_V = time_step * value_V1
        state_DV += key_D[:, None] * update_V[None, :]
        out_V = tl.sum(state_DV * query_D[:, None], 0)
        if not FORM.has_delta:
            out_V += tl.load(skips + head) * value_V1
        out_place = out + (token * FORM.num_heads + head) * FORM.value_size
        tl.store(out_place + value_V, out_V.to(out.dtype.element_ty), mask=is_V)
        store_state(states, state_DV, tl.load(slots + token), SLOT_SIZE, place_DV, is_DV)


@triton.jit(do_not_specialize=["shortest", "longest", "num_rows", "num_decode"])
def prepare(
    inputs,
    input_stride,
    betas,
    times,
    rates,
    biases,
    shortest,
    longest,
    time_stride,
    inverses,
    scores,
    logs,
    query_factors,
    key_factors,
    lens,
    num_rows,
    num_decode,
    FORM: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Writes what `carry` needs of each prefill token and head.

    For each token of its chunk: query times key, masked and decayed; with the delta rule, the inverse of I + A times
    beta. One number each: the logarithm of the decay since the chunk's beginning, the factors of its query and key.
    """
    head = tl.program_id(2)
    key_place = find_key_head(head, FORM) * FORM.key_size
    rate, bias = tl.load(rates + head), tl.load(biases + head)
    index_M = tl.arange(0, CHUNK)
    for row in range(tl.program_id(1), end_of_rows(lens, num_rows), tl.num_programs(1)):
        num_tokens, first = tl.load(lens + row), count_tokens_before(lens, row)
        for start in range(tl.program_id(0) * CHUNK, num_tokens, tl.num_programs(0) * CHUNK):
            token_M, is_M = first + start + index_M, start + index_M < num_tokens
            input_M = (num_decode + token_M) * input_stride
            time_M = (num_decode + token_M) * time_stride + head
            step_M = find_time_steps(tl.load(times + time_M, mask=is_M, other=0.0), bias, shortest, longest)
            step_M = tl.where(is_M, step_M, 0.0)
            log_M = tl.cumsum(rate * step_M)
            key_MD = load_heads(inputs + FORM.key_at + key_place, input_M, is_M, FORM.key_size, BLOCK_D)
            key_factor_M = find_scale(key_MD) if FORM.has_delta else step_M
            decay_MM = decay_between(log_M) * key_factor_M[None, :]
            query_MD = load_heads(inputs + FORM.query_at + key_place, input_M, is_M, FORM.key_size, BLOCK_D)
            query_factor_M = tl.full([CHUNK], 1.0, tl.float32)
            if FORM.has_delta:
                query_factor_M = find_scale(query_MD) * FORM.key_size**-0.5
            score_MM = tl.dot(query_MD, tl.trans(key_MD), input_precision=PRECISION) * decay_MM
            place_M = token_M * FORM.num_heads + head
            place_MM = place_M[:, None] * CHUNK + index_M[None, :]
            tl.store(scores + place_MM, score_MM * query_factor_M[:, None], mask=is_M[:, None])
            tl.store(logs + place_M, log_M, mask=is_M)
            tl.store(query_factors + place_M, query_factor_M, mask=is_M)
            tl.store(key_factors + place_M, key_factor_M, mask=is_M)
            if FORM.has_delta:
                beta_M = tl.sigmoid(tl.load(betas + time_M, mask=is_M, other=0.0).to(tl.float32))
                coupling_MM = tl.dot(key_MD, tl.trans(key_MD), input_precision=PRECISION) * decay_MM
                inverse_MM = invert_unit(coupling_MM * (beta_M * key_factor_M)[:, None], PRECISION)
                tl.store(inverses + place_MM, inverse_MM * beta_M[None, :], mask=is_M[:, None])


@triton.jit(do_not_specialize=["num_rows", "num_decode"])
def carry(
    inputs,
    input_stride,
    inverses,
    scores,
    logs,
    query_factors,
    key_factors,
    lens,
    num_rows,
    num_decode,
    skips,
    states,
    slots,
    out,
    sources,
    FORM: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Carries the state of rows through their chunks, for some values of a head."""
    head = tl.program_id(0) % FORM.num_heads
    key_place = find_key_head(head, FORM) * FORM.key_size
    index_M, dim_D = tl.arange(0, CHUNK), tl.arange(0, BLOCK_D)
    value_V = tl.program_id(0) // FORM.num_heads * BLOCK_V + tl.arange(0, BLOCK_V)
    is_V = value_V < FORM.value_size
    place_DV, is_DV = place_state(head, dim_D, value_V, FORM), (dim_D < FORM.key_size)[:, None] & is_V[None, :]
    SLOT_SIZE: tl.constexpr = FORM.num_heads * FORM.key_size * FORM.value_size
    for row in range(tl.program_id(1), end_of_rows(lens, num_rows), tl.num_programs(1)):
        num_tokens, first = tl.load(lens + row), count_tokens_before(lens, row)
        state_DV = load_state(states, tl.load(sources + row), SLOT_SIZE, place_DV, is_DV)
        for start in range(0, num_tokens, CHUNK):
            token_M, is_M = first + start + index_M, start + index_M < num_tokens
            input_M = (num_decode + token_M) * input_stride
            place_M = token_M * FORM.num_heads + head
            place_MM = place_M[:, None] * CHUNK + index_M[None, :]
            is_MV = is_M[:, None] & is_V[None, :]
            log_M = tl.load(logs + place_M, mask=is_M, other=0.0)
            key_factor_M = tl.load(key_factors + place_M, mask=is_M, other=0.0)
            key_MD = load_heads(inputs + FORM.key_at + key_place, input_M, is_M, FORM.key_size, BLOCK_D)
            value_M = input_M + FORM.value_at + head * FORM.value_size
            value_MV = tl.load(inputs + value_M[:, None] + value_V[None, :], mask=is_MV, other=0.0).to(tl.float32)
            zeros_MV = tl.zeros([CHUNK, BLOCK_V], tl.float32)
            update_MV = value_MV
            if FORM.has_delta:
                held_MV = multiply(key_MD, state_DV, zeros_MV) * (key_factor_M * tl.exp(log_M))[:, None]
                inverse_MM = tl.load(inverses + place_MM, mask=is_M[:, None], other=0.0)
                update_MV = tl.dot(inverse_MM, value_MV - held_MV, input_precision=PRECISION)
            query_MD = load_heads(inputs + FORM.query_at + key_place, input_M, is_M, FORM.key_size, BLOCK_D)
            query_factor_M = tl.load(query_factors + place_M, mask=is_M, other=0.0)
            out_MV = multiply(query_MD, state_DV, zeros_MV) * (query_factor_M * tl.exp(log_M))[:, None]
            if not FORM.has_delta:
                out_MV += tl.load(skips + head) * value_MV
            score_MM = tl.load(scores + place_MM, mask=is_M[:, None], other=0.0)
            out_MV = tl.dot(score_MM, update_MV, out_MV, input_precision=PRECISION)
            out_M = ((num_decode + token_M) * FORM.num_heads + head) * FORM.value_size
            tl.store(out + out_M[:, None] + value_V[None, :], out_MV.to(out.dtype.element_ty), mask=is_MV)
            slot_M = tl.load(slots + num_decode + token_M, mask=is_M, other=-1)
            last, places = tl.minimum(num_tokens - start, CHUNK) - 1, (place_DV, is_DV)
            state_DV = advance_state(
                states, state_DV, key_MD, update_MV, log_M, key_factor_M, slot_M, last, *places, SLOT_SIZE
            )


@triton.jit
def find_key_head(head, FORM: tl.constexpr):
    return head % FORM.num_key_heads if FORM.has_tiled_heads else head // (FORM.num_heads // FORM.num_key_heads)


@triton.jit
def place_state(head, dim_D, value_V, FORM: tl.constexpr):
    """Returns the places of a head's state within a slot, [D, V]."""
    dims_D1, values_1V = dim_D[:, None], value_V[None, :]
    place_DV = dims_D1 * FORM.value_size + values_1V if FORM.has_delta else values_1V * FORM.key_size + dims_D1
    return head * (FORM.key_size * FORM.value_size) + place_DV


@triton.jit
def load_heads(heads, place_M, is_M, SIZE: tl.constexpr, BLOCK_D: tl.constexpr):
    """Returns the query or key of each token as it is, [M, D]."""
    dim_D = tl.arange(0, BLOCK_D)
    is_MD = is_M[:, None] & (dim_D < SIZE)[None, :]
    return tl.load(heads + place_M[:, None] + dim_D[None, :], mask=is_MD, other=0.0)


@triton.jit
def find_scale(head_MD):
    """Returns what makes the length of a token's query or key 1, [M]."""
    wide_MD = head_MD.to(tl.float32)
    return tl.rsqrt(tl.sum(wide_MD * wide_MD, 1) + _NORM_EPS)
