"""The Triton kernel of `sigmoid_gate`: element by element, a program for each piece of a row.

Shape legend: T tokens, A values of all heads.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def sigmoid_gate(values_TA: Tensor, gate_TA: Tensor) -> None:
    num_tokens, size = values_TA.shape
    launch = find_launch("sigmoid_gate")
    if num_tokens:
        grid = num_tokens, triton.cdiv(size, launch["BLOCK"])
        gate_kernel[grid](values_TA, gate_TA, values_TA.stride(0), gate_TA.stride(0), SIZE=size, **launch)


@triton.jit
def gate_kernel(values, gate, values_stride, gate_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    values += row * values_stride + column
    gate = tl.load(gate + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(values, mask=mask, other=0.0).to(tl.float32) * tl.sigmoid(gate)
    tl.store(values, value.to(values.dtype.element_ty), mask=mask)
