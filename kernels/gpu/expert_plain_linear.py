"""The Triton kernel of `expert_plain_linear`: the products of all experts in one launch.

Shape legend: R rows, sorted by expert, I inputs, O outputs of an expert, X experts.

The grid has the most tiles that the rows can take. A program reads the ends of the experts' rows, finds its tile and
exits if there are fewer tiles. Nothing waits for the routes, so steps are captured.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.routes import Routes
from kernels.gpu.key_blocks import PRECISION
from kernels.gpu.launch_table import find_launch, is_many, power_of_2

MANY_ROWS = 16
"""With more rows than that for each expert, tiles have many rows."""


def expert_plain_linear(
    weight_OI: Tensor, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, *_room_and_means: Tensor | None
) -> Tensor:
    num_experts, (num_rows, num_inputs) = len(routes.ends), x_RI.shape
    num_outputs = len(weight_OI) // num_experts
    out_RO = x_RI.new_empty(num_rows, num_outputs)
    launch = find_launch("expert_plain_linear", has_many_rows(num_rows, num_experts), x_RI.itemsize)
    if num_rows:
        num_tiles = count_tiles(num_rows, num_experts, launch["BLOCK_R"])
        multiply_experts[(triton.cdiv(num_outputs, launch["BLOCK_O"]), num_tiles)](
            x_RI,
            weight_OI,
            x_RI if bias_O is None else bias_O,
            routes.ends,
            out_RO,
            num_experts,
            num_inputs,
            num_outputs,
            HAS_BIAS=bias_O is not None,
            BLOCK_X=power_of_2(num_experts),
            **launch,
        )
    return out_RO


def has_many_rows(num_rows: int, num_experts: int) -> bool:
    return is_many(num_rows, MANY_ROWS * num_experts)


def count_tiles(num_rows: int, num_experts: int, block_rows: int) -> int:
    """Returns the most tiles that these rows can take, however they are divided among the experts."""
    num_used = min(num_rows, num_experts)
    return num_used + (num_rows - num_used) // block_rows


@triton.jit
def find_tile(ends, num_experts, tile, BLOCK_X: tl.constexpr, BLOCK_R: tl.constexpr):
    """Returns the expert of a tile, its first row and the end of the expert's rows; beyond the last, no real expert."""
    expert_X = tl.arange(0, BLOCK_X)
    is_real_X = expert_X < num_experts
    end_X = tl.load(ends + expert_X, mask=is_real_X, other=0)
    begin_X = tl.load(ends + expert_X - 1, mask=is_real_X & (expert_X > 0), other=0)
    num_tiles_X = tl.where(is_real_X, (end_X - begin_X + BLOCK_R - 1) // BLOCK_R, 0)
    expert = tl.sum((tl.cumsum(num_tiles_X, 0) <= tile).to(tl.int32), 0)
    is_own_X = expert_X == expert
    own_tile = tile - tl.sum(tl.where(expert_X < expert, num_tiles_X, 0), 0)
    first_row = tl.sum(tl.where(is_own_X, begin_X, 0), 0) + own_tile * BLOCK_R
    return expert, first_row, tl.sum(tl.where(is_own_X, end_X, 0), 0)


@triton.jit(do_not_specialize=["num_experts"], do_not_specialize_on_alignment=["bias", "ends"])
def multiply_experts(
    x,
    weight,
    bias,
    ends,
    out,
    num_experts,
    num_inputs,
    num_outputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Outputs and rows beyond the last are computed as the last, and not stored."""
    expert, first_row, end_row = find_tile(ends, num_experts, tl.program_id(1), BLOCK_X, BLOCK_R)
    if expert >= num_experts:
        return
    output_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    row_R = first_row + tl.arange(0, BLOCK_R)
    weight_O = expert.to(tl.int64) * num_outputs + tl.minimum(output_O, num_outputs - 1)
    x_R = x + tl.minimum(row_R, end_row - 1).to(tl.int64) * num_inputs
    acc_OR = tl.zeros([BLOCK_O, BLOCK_R], tl.float32)
    for first in range(0, num_inputs, BLOCK_I):
        input_I = first + tl.arange(0, BLOCK_I)
        is_real_I = input_I < num_inputs
        weight_OI = tl.load(
            weight + weight_O[:, None] * num_inputs + input_I[None, :], mask=is_real_I[None, :], other=0.0
        )
        x_IR = tl.load(x_R[None, :] + input_I[:, None], mask=is_real_I[:, None], other=0.0)
        acc_OR = tl.dot(weight_OI, x_IR, acc_OR, input_precision=PRECISION)
    if HAS_BIAS:
        acc_OR += tl.load(bias + weight_O).to(tl.float32)[:, None]
    store_tile(out, acc_OR, row_R, output_O, end_row, num_outputs)


@triton.jit
def store_tile(out, acc_OR, row_R, output_O, end_row, num_outputs):
    out_OR = out + row_R.to(tl.int64)[None, :] * num_outputs + output_O[:, None]
    mask_OR = (output_O < num_outputs)[:, None] & (row_R < end_row)[None, :]
    tl.store(out_OR, acc_OR.to(out.dtype.element_ty), mask=mask_OR)
