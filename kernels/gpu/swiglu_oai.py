"""The Triton kernel of `swiglu_oai`: element by element, a program for each piece of a row.

Shape legend: R rows, F inner values of an expert.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def swiglu_oai(gate_up_RF2: Tensor, alpha: float, limit: float, _out_RF: Tensor | None) -> Tensor:
    num_rows, size = gate_up_RF2.shape[0], gate_up_RF2.shape[1] // 2
    assert gate_up_RF2.is_contiguous()
    out_RF = torch.empty(num_rows, size, dtype=gate_up_RF2.dtype, device=gate_up_RF2.device)
    launch = find_launch("silu_mul")
    grid = (num_rows, triton.cdiv(size, launch["BLOCK"]))
    swiglu_kernel[grid](gate_up_RF2, out_RF, SIZE=size, ALPHA=alpha, LIMIT=limit, **launch)
    return out_RF


@triton.jit
def swiglu_kernel(
    gate_up_ptr, out_ptr, SIZE: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(gate_up_ptr + row * 2 * SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * SIZE + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    # Comparisons keep NaN, which minimum and maximum drop.
    gate = tl.where(gate > LIMIT, LIMIT, gate)
    up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    gated = (up + 1.0) * gate / (1.0 + tl.exp(-ALPHA * gate))
    tl.store(out_ptr + row * SIZE + columns, gated.to(out_ptr.dtype.element_ty), mask=mask)
