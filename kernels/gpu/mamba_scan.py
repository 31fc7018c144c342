"""The recurrence of Mamba-2 in Triton: one step for decode rows, chunks of tokens in the SSD form for prefill rows.

Shape legend: T tokens, H heads, G groups of heads, V values per head, D state size, X = H V + 2 G D, N = H V, S slots;
in a program M tokens of a chunk, and states are transposed: [D, V].

Within a chunk, the state-space dual (Dao and Gu, 2024, section 6) is attention without softmax: C is the query, B the
key, dt * x the value, and scores decay with distance.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.gpu.launch_table import find_launch
from kernels.gpu.state_chunks import (
    CHUNK,
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


def mamba_scan(
    xbc_TX: Tensor,
    time_TH: Tensor,
    decay: StateDecay,
    skip_H: Tensor,
    matrix_SHVD: Tensor,
    rows: StateRows,
    out_TN: Tensor,
) -> None:
    num_heads, value_size, state_size = matrix_SHVD.shape[1:]
    num_decode, num_prefill = rows.num_decode_rows, len(rows.prefill_lens)
    assert skip_H.is_contiguous()
    assert out_TN.is_contiguous()
    shape = {
        "NUM_HEADS": num_heads,
        "NUM_GROUPS": (xbc_TX.shape[1] - num_heads * value_size) // (2 * state_size),
        "VALUE_SIZE": value_size,
        "STATE_SIZE": state_size,
    }
    arguments = xbc_TX, time_TH, *decay, skip_H, matrix_SHVD, rows.slots, out_TN, xbc_TX.stride(0), time_TH.stride(0)
    if num_decode:
        launch = find_launch("mamba_scan", state_size, value_size)
        grid = num_decode, num_heads * triton.cdiv(value_size, launch["BLOCK_V"])
        step[grid](*arguments, rows.decode_sources, **shape, **launch)
    if num_prefill and len(xbc_TX) > num_decode:
        launch = find_launch("mamba_scan_chunks", state_size)
        grid = num_heads * triton.cdiv(value_size, launch["BLOCK_V"]), min(num_prefill, MAX_ROW_PROGRAMS)
        columns = rows.prefill_sources, rows.prefill_lens, num_prefill, num_decode
        carry[grid](*arguments, *columns, **shape, PRECISION=precision_of(xbc_TX), **launch)


@triton.jit(do_not_specialize=["shortest", "longest"])
def step(
    xbc,
    time,
    rates,
    biases,
    shortest,
    longest,
    skips,
    matrix,
    slots,
    out,
    xbc_stride,
    time_stride,
    sources,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One token of a row, for some values of a head."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1) % NUM_HEADS
    dim_D = tl.arange(0, BLOCK_D)
    value_V = tl.program_id(1) // NUM_HEADS * BLOCK_V + tl.arange(0, BLOCK_V)
    is_D, is_V = dim_D < STATE_SIZE, value_V < VALUE_SIZE
    SLOT_SIZE: tl.constexpr = NUM_HEADS * VALUE_SIZE * STATE_SIZE
    place_DV = (head * VALUE_SIZE + value_V)[None, :] * STATE_SIZE + dim_D[:, None]
    is_DV = is_D[:, None] & is_V[None, :]
    state_DV = load_state(matrix, tl.load(sources + row), SLOT_SIZE, place_DV, is_DV)
    xbc += row * xbc_stride
    groups = xbc + NUM_HEADS * VALUE_SIZE + head // (NUM_HEADS // NUM_GROUPS) * STATE_SIZE
    b_D = tl.load(groups + dim_D, mask=is_D, other=0.0).to(tl.float32)
    c_D = tl.load(groups + NUM_GROUPS * STATE_SIZE + dim_D, mask=is_D, other=0.0).to(tl.float32)
    x_V = tl.load(xbc + head * VALUE_SIZE + value_V, mask=is_V, other=0.0).to(tl.float32)
    time_step = find_time_steps(tl.load(time + row * time_stride + head), tl.load(biases + head), shortest, longest)
    kept = tl.exp(tl.load(rates + head) * time_step)
    state_DV = state_DV * kept + b_D[:, None] * (time_step * x_V)[None, :]
    out_V = tl.sum(state_DV * c_D[:, None], 0) + tl.load(skips + head) * x_V
    out += (row * NUM_HEADS + head) * VALUE_SIZE
    tl.store(out + value_V, out_V.to(out.dtype.element_ty), mask=is_V)
    store_state(matrix, state_DV, tl.load(slots + row), SLOT_SIZE, place_DV, is_DV)


@triton.jit(do_not_specialize=["shortest", "longest", "num_rows", "num_decode"])
def carry(
    xbc,
    time,
    rates,
    biases,
    shortest,
    longest,
    skips,
    matrix,
    slots,
    out,
    xbc_stride,
    time_stride,
    sources,
    lens,
    num_rows,
    num_decode,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Carries the state of rows through their chunks, for some values of a head."""
    head = tl.program_id(0) % NUM_HEADS
    index_M, dim_D = tl.arange(0, CHUNK), tl.arange(0, BLOCK_D)
    value_V = tl.program_id(0) // NUM_HEADS * BLOCK_V + tl.arange(0, BLOCK_V)
    is_D, is_V = dim_D < STATE_SIZE, value_V < VALUE_SIZE
    SLOT_SIZE: tl.constexpr = NUM_HEADS * VALUE_SIZE * STATE_SIZE
    place_DV = (head * VALUE_SIZE + value_V)[None, :] * STATE_SIZE + dim_D[:, None]
    is_DV = is_D[:, None] & is_V[None, :]
    group = NUM_HEADS * VALUE_SIZE + head // (NUM_HEADS // NUM_GROUPS) * STATE_SIZE
    rate, bias, skip = tl.load(rates + head), tl.load(biases + head), tl.load(skips + head)
    for row in range(tl.program_id(1), end_of_rows(lens, num_rows), tl.num_programs(1)):
        num_tokens, first = tl.load(lens + row), num_decode + count_tokens_before(lens, row)
        state_DV = load_state(matrix, tl.load(sources + row), SLOT_SIZE, place_DV, is_DV)
        for start in range(0, num_tokens, CHUNK):
            token_M, is_M = first + start + index_M, start + index_M < num_tokens
            is_MD, is_MV = is_M[:, None] & is_D[None, :], is_M[:, None] & is_V[None, :]
            groups_MD = xbc + (token_M * xbc_stride + group)[:, None] + dim_D[None, :]
            b_MD = tl.load(groups_MD, mask=is_MD, other=0.0)
            c_MD = tl.load(groups_MD + NUM_GROUPS * STATE_SIZE, mask=is_MD, other=0.0)
            x_MV = xbc + (token_M * xbc_stride + head * VALUE_SIZE)[:, None] + value_V[None, :]
            x_MV = tl.load(x_MV, mask=is_MV, other=0.0).to(tl.float32)
            time_M = tl.load(time + token_M * time_stride + head, mask=is_M, other=0.0)
            step_M = tl.where(is_M, find_time_steps(time_M, bias, shortest, longest), 0.0)
            log_M = tl.cumsum(rate * step_M)
            score_MM = tl.dot(c_MD, tl.trans(b_MD), input_precision=PRECISION)
            score_MM *= decay_between(log_M) * step_M[None, :]
            out_MV = multiply(c_MD, state_DV, tl.zeros([CHUNK, BLOCK_V], tl.float32)) * tl.exp(log_M)[:, None]
            out_MV = tl.dot(score_MM, x_MV, out_MV + skip * x_MV, input_precision=PRECISION)
            out_MV_places = out + ((token_M * NUM_HEADS + head) * VALUE_SIZE)[:, None] + value_V[None, :]
            tl.store(out_MV_places, out_MV.to(out.dtype.element_ty), mask=is_MV)
            slot_M = tl.load(slots + token_M, mask=is_M, other=-1)
            last = tl.minimum(num_tokens - start, CHUNK) - 1
            places = place_DV, is_DV
            state_DV = advance_state(matrix, state_DV, b_MD, x_MV, log_M, step_M, slot_M, last, *places, SLOT_SIZE)
