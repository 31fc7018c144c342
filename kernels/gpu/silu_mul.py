"""The Triton kernel of `silu_mul`, `gelu_mul` and `swiglu_oai`: element by element, a program for each piece of a row.

Shape legend: T tokens, F MLP size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.gelu import gelu_of
from kernels.gpu.launch_table import find_launch


def silu_mul(gate_up_TF2: Tensor, _out_TF: Tensor | None) -> Tensor:
    return multiply(gate_up_TF2, "silu")


def multiply(gate_up_TF2: Tensor, kind: str, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    """`kind`: "silu", "swiglu_oai", which `alpha` and `limit` are of, or that of a gelu."""
    num_tokens, size = gate_up_TF2.shape[0], gate_up_TF2.shape[1] // 2
    assert gate_up_TF2.is_contiguous()
    out_TF = torch.empty(num_tokens, size, dtype=gate_up_TF2.dtype, device=gate_up_TF2.device)
    launch = find_launch("silu_mul")
    grid = (num_tokens, triton.cdiv(size, launch["BLOCK"]))
    gate_mul_kernel[grid](gate_up_TF2, out_TF, SIZE=size, KIND=kind, ALPHA=alpha, LIMIT=limit, **launch)
    return out_TF


@triton.jit
def activate(gate, KIND: tl.constexpr):
    return gate / (1.0 + tl.exp(-gate)) if KIND == "silu" else gelu_of(gate, KIND == "tanh")


@triton.jit
def gate_mul_kernel(
    gate_up_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(gate_up_ptr + row * 2 * SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * SIZE + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    if KIND == "swiglu_oai":
        # Comparisons keep NaN, which minimum and maximum drop.
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        out = (up + 1.0) * gate / (1.0 + tl.exp(-ALPHA * gate))
    else:
        # Rounded before it is multiplied, as in the models' own code.
        out = activate(gate, KIND).to(out_ptr.dtype.element_ty).to(tl.float32) * up
    tl.store(out_ptr + row * SIZE + columns, out.to(out_ptr.dtype.element_ty), mask=mask)
