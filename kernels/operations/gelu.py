"""The activation of GPT-2's MLP.

Shape legend: T tokens, F MLP size. Formula: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.library import find_kernel
from kernels.gpu.triton_kernels import find_triton_kernel

GeluKind = Literal["tanh", "exact"]


def gelu(x_TF: Tensor, kind: GeluKind) -> Tensor:
    """Returns gelu(x): by the normal distribution's own function (`exact`) or by its `tanh` approximation."""
    assert kind in ("tanh", "exact")
    triton_kernel = find_triton_kernel("gelu", x_TF)
    if triton_kernel is not None and x_TF.is_contiguous():
        return triton_kernel(x_TF, kind)
    kernel = find_kernel("gelu", x_TF)
    if kernel is None or kind == "exact" or not x_TF.is_contiguous():
        return gelu_reference(x_TF, kind)
    out_TF = torch.empty_like(x_TF)
    kernel(x_TF.data_ptr(), out_TF.data_ptr(), x_TF.shape[0], x_TF.shape[1])
    return out_TF


def gelu_reference(x_TF: Tensor, kind: GeluKind) -> Tensor:
    return functional.gelu(x_TF, approximate="tanh" if kind == "tanh" else "none")
