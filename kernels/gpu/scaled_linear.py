"""The Triton kernel of `scaled_linear`: tensor cores multiply codes by codes.

Shape legend: T tokens, I inputs of a block: those that share a scale of the weight, O outputs; P inputs with their
filling.

Hopper's tensor cores add the products of codes with about 14 bits: a block's sum is added to the others in float32,
times its scale. So each form of scales is computed alike, one per output as well. The inputs are cut into parts as in
`plain_linear`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.code_planes import CodePlanes
from kernels.gpu.launch_table import find_launch
from kernels.gpu.plain_linear import find_part_blocks, is_cut
from kernels.gpu.planes_linear import sum_parts

MANY_TOKENS = 64
"""With more, the tile is as large as products need; a weight is read for all tokens of fewer at once."""


def scaled_linear(codes_TP: Tensor, scale_T: Tensor, planes: CodePlanes, bias_O: Tensor | None, out_TO: Tensor) -> None:
    (num_tokens, num_padded), num_outputs = codes_TP.shape, planes.num_outputs
    if not num_tokens:
        return
    block_inputs = planes.form.group * planes.form.groups_a_scale
    has_many = num_tokens > MANY_TOKENS
    launch = find_launch("scaled_linear", has_many, block_inputs)
    num_blocks, num_tiles = triton.cdiv(num_outputs, launch["BLOCK_O"]), triton.cdiv(num_tokens, launch["BLOCK_T"])
    part_blocks = find_part_blocks(num_padded // block_inputs, num_blocks)
    num_parts = triton.cdiv(num_padded // block_inputs, part_blocks)
    if has_many and not is_cut(num_parts, num_blocks * num_tiles):
        num_parts, part_blocks = 1, num_padded // block_inputs
    is_split = num_parts > 1
    sums = torch.empty(num_parts * num_tokens, num_outputs, device=out_TO.device) if is_split else out_TO
    multiply_scaled[(num_blocks, num_tiles, num_parts)](
        *(codes_TP, scale_T, planes.low, planes.scales, scale_T if bias_O is None else bias_O, sums),
        *(num_tokens, num_padded, num_outputs, part_blocks, sums.stride(0)),
        HAS_BIAS=bias_O is not None and not is_split,
        **launch,
    )
    if is_split:
        sum_parts(sums, bias_O, out_TO)


@triton.jit(
    do_not_specialize=["num_tokens", "num_outputs", "part_blocks", "out_stride"],
    do_not_specialize_on_alignment=["x_scales", "bias", "out"],
)
def multiply_scaled(
    x,
    x_scales,
    weight,
    scales,
    bias,
    out,
    num_tokens,
    num_inputs,
    num_outputs,
    part_blocks,
    out_stride,
    HAS_BIAS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Outputs and tokens beyond the last are computed as the last, and not stored."""
    output_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    token_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    part = tl.program_id(2)
    real_O, real_T = tl.minimum(output_O, num_outputs - 1), tl.minimum(token_T, num_tokens - 1)
    weight_O, x_T = weight + real_O.to(tl.int64) * num_inputs, x + real_T.to(tl.int64) * num_inputs
    begin = part * part_blocks
    end = tl.minimum(begin + part_blocks, num_inputs // BLOCK_I)
    acc_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    scale_O = tl.load(scales + begin * num_outputs + real_O)
    for block in range(begin, end):
        input_I = block * BLOCK_I + tl.arange(0, BLOCK_I)
        weight_OI = tl.load(weight_O[:, None] + input_I[None, :])
        x_IT = tl.load(x_T[None, :] + input_I[:, None])
        # Triton copies no scales ahead: those of the next block arrive during the product.
        next_scale_O = tl.load(scales + tl.minimum(block + 1, end - 1) * num_outputs + real_O)
        acc_OT += tl.dot(weight_OI, x_IT) * scale_O[:, None]
        scale_O = next_scale_O
    acc_OT *= tl.load(x_scales + real_T)[None, :]
    if HAS_BIAS:
        acc_OT += tl.load(bias + real_O).to(tl.float32)[:, None]
    out_T = (part * num_tokens + token_T).to(tl.int64) * out_stride
    mask_OT = (output_O < num_outputs)[:, None] & (token_T < num_tokens)[None, :]
    tl.store(out + out_T[None, :] + output_O[:, None], acc_OT.to(out.dtype.element_ty), mask=mask_OT)
