"""The Triton kernel of `quantize_rows`: a program has a whole row in its registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.paged_kv import MAX_CODES
from kernels.gpu.launch_table import find_launch


def quantize_rows(x_RI: Tensor, num_padded: int, least_R: Tensor | None) -> tuple[Tensor, Tensor]:
    if least_R is not None:
        return NotImplemented
    num_rows, num_inputs = x_RI.shape
    codes_RP = torch.empty(num_rows, num_padded, dtype=torch.float8_e4m3fn, device=x_RI.device)
    scale_R = torch.empty(num_rows, dtype=torch.float32, device=x_RI.device)
    if num_rows:
        quantize_row[(num_rows,)](
            *(x_RI, codes_RP, scale_R),
            NUM_INPUTS=num_inputs,
            NUM_PADDED=num_padded,
            MAX_CODE=MAX_CODES[codes_RP.dtype],
            **find_launch("quantize_rows", num_padded),
        )
    return codes_RP, scale_R


@triton.jit(do_not_specialize_on_alignment=["scales"])
def quantize_row(
    x,
    codes,
    scales,
    NUM_INPUTS: tl.constexpr,
    NUM_PADDED: tl.constexpr,
    MAX_CODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    wide = tl.load(x + row * NUM_INPUTS + column, mask=column < NUM_INPUTS, other=0.0).to(tl.float32)
    # As bits NaN is more than any number, where a maximum of floats may lose it.
    largest = tl.max(tl.abs(wide).to(tl.int32, bitcast=True), 0).to(tl.float32, bitcast=True)
    scale = tl.div_rn(largest, MAX_CODE)
    code = tl.div_rn(wide, tl.where(scale == 0, 1.0, scale)).to(codes.dtype.element_ty)
    tl.store(codes + row * NUM_PADDED + column, code, mask=column < NUM_PADDED)
    tl.store(scales + row, scale)
