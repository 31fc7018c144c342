"""The Triton kernel of `gelu`: element by element, a program for each piece of a row.

Shape legend: T tokens, F MLP size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def gelu(x_TF: Tensor, kind: str) -> Tensor:
    num_tokens, size = x_TF.shape
    assert x_TF.is_contiguous()
    out_TF = torch.empty_like(x_TF)
    launch = find_launch("gelu")
    grid = (num_tokens, triton.cdiv(size, launch["BLOCK"]))
    gelu_kernel[grid](x_TF, out_TF, SIZE=size, IS_TANH=kind == "tanh", **launch)
    return out_TF


@triton.jit
def gelu_of(x, IS_TANH: tl.constexpr):
    if IS_TANH:
        # (1 + tanh(u)) / 2 is the sigmoid of 2 u; 1.5957691... is 2 sqrt(2 / pi).
        result = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    else:
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return result


@triton.jit
def gelu_kernel(x_ptr, out_ptr, SIZE: tl.constexpr, IS_TANH: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    x = tl.load(x_ptr + first + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + first + columns, gelu_of(x, IS_TANH).to(out_ptr.dtype.element_ty), mask=mask)
