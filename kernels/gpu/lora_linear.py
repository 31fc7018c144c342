"""The Triton kernels of `lora_linear`: u = scale * A x of each token, then outputs += B u.

A program takes some tokens of one adapter, found through the tokens sorted by their slots, so that captured steps may
have any adapters. A grid has programs for the most tokens that a slot may have; those without tokens exit.

Shape legend: T tokens, M tokens of a program, I inputs, O outputs, R rank; S slots, G segments.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.lora_slots import LoraSlots, TokenAdapters
from kernels.gpu.key_blocks import PRECISION
from kernels.gpu.launch_table import find_launch, is_many

MANY_TOKENS = 128
"""With more, tiles have many tokens."""


def lora_linear(x_TI: Tensor, lora: LoraSlots, adapters: TokenAdapters, out_TO: Tensor) -> None:
    num_tokens, num_inputs = x_TI.shape
    num_slots, num_segments, max_rank, _ = lora.a.shape
    if not num_tokens:
        return
    u_TGR, has_many = x_TI.new_empty(num_tokens, num_segments, max_rank), is_many(num_tokens, MANY_TOKENS)
    columns, num_outputs = (adapters.order, adapters.starts, lora.ranks), out_TO.shape[1]
    sizes = {"NUM_SEGMENTS": num_segments, "MAX_RANK": max_rank}
    launch = find_launch("lora_shrink", has_many, max_rank, x_TI.itemsize)
    shrink[(triton.cdiv(num_tokens, launch["BLOCK_M"]), num_slots, num_segments)](
        *(x_TI, lora.a, lora.scales, *columns, u_TGR, num_inputs), **sizes, **launch
    )
    launch = find_launch("lora_expand", has_many, x_TI.itemsize)
    num_blocks = triton.cdiv(num_outputs, launch["BLOCK_O"])
    expand[(triton.cdiv(num_tokens, launch["BLOCK_M"]), num_slots, num_blocks)](
        *(u_TGR, lora.b, lora.ends, *columns, out_TO, num_outputs), **sizes, **launch
    )


@triton.jit
def find_tokens(order, starts, BLOCK_M: tl.constexpr):
    """Returns the program's tokens, and which of them are real."""
    slot = tl.program_id(1)
    first, end = tl.load(starts + slot), tl.load(starts + slot + 1)
    index_M = first + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    return tl.load(order + index_M, mask=index_M < end, other=0), index_M < end


@triton.jit(do_not_specialize_on_alignment=["scales", "order", "starts", "ranks"])
def shrink(
    x,
    a,
    scales,
    order,
    starts,
    ranks,
    u,
    num_inputs,
    NUM_SEGMENTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    token_M, is_M = find_tokens(order, starts, BLOCK_M)
    place = tl.program_id(1) * NUM_SEGMENTS + tl.program_id(2)
    rank = tl.load(ranks + place)
    if (tl.max(is_M.to(tl.int32), 0) == 0) | (rank == 0):
        return
    scale = tl.load(scales + place)
    x_M = x + token_M * num_inputs
    u_M = u + (token_M * NUM_SEGMENTS + tl.program_id(2)) * MAX_RANK
    for first_rank in range(0, rank, BLOCK_R):
        row_R = first_rank + tl.arange(0, BLOCK_R)
        a_R = a + (place.to(tl.int64) * MAX_RANK + row_R) * num_inputs
        sum_MR = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for first in range(0, num_inputs, BLOCK_I):
            input_I = first + tl.arange(0, BLOCK_I)
            is_I = input_I < num_inputs
            x_MI = tl.load(x_M[:, None] + input_I[None, :], mask=is_M[:, None] & is_I[None, :], other=0.0)
            a_IR = tl.load(a_R[None, :] + input_I[:, None], mask=(row_R < rank)[None, :] & is_I[:, None], other=0.0)
            sum_MR = tl.dot(x_MI, a_IR, sum_MR, input_precision=PRECISION)
        is_MR = is_M[:, None] & (row_R < rank)[None, :]
        tl.store(u_M[:, None] + row_R[None, :], (scale * sum_MR).to(u.dtype.element_ty), mask=is_MR)


@triton.jit(do_not_specialize_on_alignment=["ends", "order", "starts", "ranks"])
def expand(
    u,
    b,
    ends,
    order,
    starts,
    ranks,
    out,
    num_outputs,
    NUM_SEGMENTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    token_M, is_M = find_tokens(order, starts, BLOCK_M)
    if tl.max(is_M.to(tl.int32), 0) == 0:
        return
    first_output = tl.program_id(2) * BLOCK_O
    output_O = first_output + tl.arange(0, BLOCK_O)
    b_O = b + tl.program_id(1).to(tl.int64) * MAX_RANK * num_outputs + output_O
    sum_MO = tl.zeros([BLOCK_M, BLOCK_O], tl.float32)
    begin = 0
    for segment in tl.static_range(NUM_SEGMENTS):
        end = tl.load(ends + segment)
        rank = tl.load(ranks + tl.program_id(1) * NUM_SEGMENTS + segment)
        if (end > first_output) & (begin < first_output + BLOCK_O):
            is_O = (output_O >= begin) & (output_O < end)
            u_M = u + (token_M * NUM_SEGMENTS + segment) * MAX_RANK
            for first in range(0, rank, BLOCK_R):
                row_R = first + tl.arange(0, BLOCK_R)
                is_R = row_R < rank
                u_MR = tl.load(u_M[:, None] + row_R[None, :], mask=is_M[:, None] & is_R[None, :], other=0.0)
                b_RO = tl.load(
                    b_O[None, :] + row_R[:, None] * num_outputs, mask=is_R[:, None] & is_O[None, :], other=0.0
                )
                sum_MO = tl.dot(u_MR, b_RO, sum_MO, input_precision=PRECISION)
        begin = end
    out_MO = out + token_M[:, None] * num_outputs + output_O[None, :]
    is_MO = is_M[:, None] & (output_O < num_outputs)[None, :]
    sum_MO += tl.load(out_MO, mask=is_MO, other=0.0).to(tl.float32)
    tl.store(out_MO, sum_MO.to(out.dtype.element_ty), mask=is_MO)
