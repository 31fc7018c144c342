"""The Triton kernel of `expert_planes_linear`: as `expert_plain_linear.py`, with codes in place of a plain weight.

Shape legend: R rows, sorted by expert, T rows of a tile, I inputs, O outputs of an expert.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.code_planes import CodePlanes
from kernels.arguments.routes import Routes
from kernels.gpu.expert_plain_linear import count_tiles, find_tile, has_many_rows, store_tile
from kernels.gpu.launch_table import find_launch, power_of_2
from kernels.gpu.plane_codes import planes_of
from kernels.gpu.planes_linear import multiply_spans


def expert_planes_linear(
    planes: CodePlanes, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, *_room_and_means: Tensor | None
) -> Tensor:
    num_experts, num_rows = len(routes.ends), len(x_RI)
    num_outputs = planes.num_outputs // num_experts
    out_RO = x_RI.new_empty(num_rows, num_outputs)
    shape = has_many_rows(num_rows, num_experts), planes.form.looks_up, x_RI.itemsize
    launch = find_launch("expert_planes_linear", *shape)
    if num_rows:
        num_tiles = count_tiles(num_rows, num_experts, launch["BLOCK_T"])
        multiply_expert_codes[(triton.cdiv(num_outputs, launch["BLOCK_O"]), num_tiles)](
            x_RI,
            *planes_of(planes),
            x_RI if bias_O is None else bias_O,
            routes.ends,
            out_RO,
            num_experts,
            planes.num_inputs,
            num_outputs,
            planes.num_spans,
            HAS_BIAS=bias_O is not None,
            FORM=planes.form,
            BLOCK_X=power_of_2(num_experts),
            **launch,
        )
    return out_RO


@triton.jit(do_not_specialize=["num_experts", "num_spans"], do_not_specialize_on_alignment=["bias", "ends"])
def multiply_expert_codes(
    x,
    low,
    high,
    scales,
    scale_factors,
    minimums,
    minimum_factors,
    table,
    bias,
    ends,
    out,
    num_experts,
    num_inputs,
    num_outputs,
    num_spans,
    HAS_BIAS: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Outputs and rows beyond the last are computed as the last, and not stored."""
    expert, first_row, end_row = find_tile(ends, num_experts, tl.program_id(1), BLOCK_X, BLOCK_T)
    if expert >= num_experts:
        return
    output_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    row_T = first_row + tl.arange(0, BLOCK_T)
    weight_O = expert * num_outputs + tl.minimum(output_O, num_outputs - 1)
    x_T = x + tl.minimum(row_T, end_row - 1).to(tl.int64) * num_inputs
    planes = low, high, scales, scale_factors, minimums, minimum_factors, table
    acc_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    all_outputs = num_experts * num_outputs
    acc_OT = multiply_spans(acc_OT, x_T, planes, weight_O, num_inputs, all_outputs, num_spans, 0, num_spans, FORM)
    if HAS_BIAS:
        acc_OT += tl.load(bias + weight_O).to(tl.float32)[:, None]
    store_tile(out, acc_OT, row_T, output_O, end_row, num_outputs)
