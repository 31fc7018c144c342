"""The Triton kernel of `plain_linear`, in use with fixed launches alone: cuBLAS is faster, but it chooses how to sum by
the number of tokens.

Shape legend: T tokens, I inputs, O outputs; K parts of the inputs.

The tile and the parts that the inputs are cut into follow from the weight. A part is summed block by block, and the
parts are added in their order: with few tokens by a second kernel, so that all processors read the weight, with many by
the program itself. Both add the same numbers in the same order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.key_blocks import PRECISION
from kernels.gpu.launch_table import MANY_PROGRAMS, find_launch
from kernels.gpu.planes_linear import sum_parts

PART_BLOCKS = 4
"""A part has at least as many blocks of inputs: a shorter one costs more to add than to compute."""


def plain_linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    x_TI, (num_tokens, num_inputs), num_outputs = x_TI.contiguous(), x_TI.shape, len(weight_OI)
    assert weight_OI.is_contiguous()
    out_TO = x_TI.new_empty(num_tokens, num_outputs)
    if not num_tokens:
        return out_TO
    launch = find_launch("plain_linear", x_TI.itemsize)
    num_blocks, num_tiles = triton.cdiv(num_outputs, launch["BLOCK_O"]), triton.cdiv(num_tokens, launch["BLOCK_T"])
    part_blocks = find_part_blocks(triton.cdiv(num_inputs, launch["BLOCK_I"]), num_blocks)
    num_parts = triton.cdiv(num_inputs, part_blocks * launch["BLOCK_I"])
    is_split = is_cut(num_parts, num_blocks * num_tiles)
    bias = x_TI if bias_O is None else bias_O
    sums = x_TI.new_empty(num_parts * num_tokens, num_outputs, dtype=torch.float32) if is_split else out_TO
    multiply[(num_blocks, num_tiles, num_parts if is_split else 1)](
        *(x_TI, weight_OI, bias, sums, num_tokens, num_inputs, num_outputs, part_blocks, 1 if is_split else num_parts),
        HAS_BIAS=bias_O is not None and not is_split,
        **launch,
    )
    if is_split:
        sum_parts(sums, bias_O, out_TO)
    return out_TO


def is_cut(num_parts: int, num_programs: int) -> bool:
    """True if parts have programs of their own: without them there are too few to keep all processors reading."""
    return num_parts > 1 and num_programs < MANY_PROGRAMS


def find_part_blocks(num_input_blocks: int, num_output_blocks: int) -> int:
    """Returns the blocks of inputs of a part, so that parts times blocks of outputs are many programs."""
    num_parts = min(num_input_blocks // PART_BLOCKS, triton.cdiv(MANY_PROGRAMS, num_output_blocks))
    return triton.cdiv(num_input_blocks, max(1, num_parts))


@triton.jit(
    do_not_specialize=["num_tokens", "num_outputs", "part_blocks", "num_parts"],
    do_not_specialize_on_alignment=["bias", "out"],
)
def multiply(
    x,
    weight,
    bias,
    out,
    num_tokens,
    num_inputs,
    num_outputs,
    part_blocks,
    num_parts,
    HAS_BIAS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Adds `num_parts` parts, and writes the sum behind those of the programs before it. Outputs and tokens beyond the
    last are computed as the last, and not stored."""
    output_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    token_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    real_O, real_T = tl.minimum(output_O, num_outputs - 1), tl.minimum(token_T, num_tokens - 1)
    weight_O, x_T = weight + real_O.to(tl.int64) * num_inputs, x + real_T.to(tl.int64) * num_inputs
    total_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    if HAS_BIAS:
        total_OT += tl.load(bias + real_O).to(tl.float32)[:, None]
    for part in range(num_parts):
        begin = (tl.program_id(2) * num_parts + part) * part_blocks
        sum_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
        for block in range(begin, tl.minimum(begin + part_blocks, tl.cdiv(num_inputs, BLOCK_I))):
            input_I = block * BLOCK_I + tl.arange(0, BLOCK_I)
            is_I = input_I < num_inputs
            weight_OI = tl.load(weight_O[:, None] + input_I[None, :], mask=is_I[None, :], other=0.0)
            x_IT = tl.load(x_T[None, :] + input_I[:, None], mask=is_I[:, None], other=0.0)
            sum_OT = tl.dot(weight_OI, x_IT, sum_OT, input_precision=PRECISION)
        total_OT += sum_OT
    out_T = (tl.program_id(2) * num_tokens + token_T).to(tl.int64) * num_outputs
    mask_OT = (output_O < num_outputs)[:, None] & (token_T < num_tokens)[None, :]
    tl.store(out + out_T[None, :] + output_O[:, None], total_OT.to(out.dtype.element_ty), mask=mask_OT)
