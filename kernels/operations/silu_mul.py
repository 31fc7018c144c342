"""The gated activation of Llama's MLP.

Shape legend: T tokens, F MLP size. Formula: Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.library import find_kernel
from kernels.gpu.triton_kernels import find_triton_kernel


def silu_mul(gate_up_TF2: Tensor, out_TF: Tensor | None = None) -> Tensor:
    """Returns silu(gate) * up as [T, F]; `gate_up_TF2` [T, 2F] holds the gate in its first half, and may be changed.

    The result may be put into `out_TF`, and is a new tensor otherwise.
    """
    assert gate_up_TF2.shape[-1] % 2 == 0
    triton_kernel = find_triton_kernel("silu_mul", gate_up_TF2)
    if triton_kernel is not None and gate_up_TF2.is_contiguous():
        return triton_kernel(gate_up_TF2)
    kernel = find_kernel("silu_mul", gate_up_TF2)
    if kernel is None or not gate_up_TF2.is_contiguous():
        return silu_mul_reference(gate_up_TF2)
    num_tokens, size = gate_up_TF2.shape[0], gate_up_TF2.shape[1] // 2
    out_TF = torch.empty(num_tokens, size, dtype=gate_up_TF2.dtype) if out_TF is None else out_TF
    assert out_TF.shape == (num_tokens, size)
    assert out_TF.is_contiguous()
    kernel(gate_up_TF2.data_ptr(), out_TF.data_ptr(), num_tokens, size)
    return out_TF


def silu_mul_reference(gate_up_TF2: Tensor) -> Tensor:
    gate_TF, up_TF = gate_up_TF2.chunk(2, dim=-1)
    return functional.silu(gate_TF).mul_(up_TF)
