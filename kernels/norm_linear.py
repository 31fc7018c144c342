"""Residual addition, RMS norm, linear layer and gated activation as one operation, for steps of few tokens.

Shape legend: T tokens, I inputs, O outputs of the weight, F outputs of the operation: O, gated O / 2.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.gpu.triton_kernels import find_triton_kernel
from kernels.rms_norm import rms_norm_reference
from kernels.silu_mul import silu_mul_reference

MAX_TOKENS = 16
"""The rows of one product on tensor cores. Chosen by thought, not measured: with more rows, cuBLAS is expected to
gain more than the launches that are saved."""

DTYPES = (torch.bfloat16, torch.float32)
"""The product is of the residual stream, which is scaled behind it: in float16 that might overflow."""


def norm_linear(
    x_TI: Tensor,
    update_TI: Tensor | None,
    norm_weight_I: Tensor,
    eps: float,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    is_gated: bool,
) -> tuple[Tensor, Tensor]:
    """Returns the residual stream x + update [T, I] and the linear layer of its RMS norm [T, F]; changes nothing.

    Where `is_gated`, it is `silu_mul` of the layer's outputs. There are `MAX_TOKENS` tokens at most, of `DTYPES`. The
    results are those of the single operations up to rounding.
    """
    assert x_TI.dtype in DTYPES
    assert len(x_TI) <= MAX_TOKENS
    assert {norm_weight_I.dtype, weight_OI.dtype} == {x_TI.dtype}
    assert weight_OI.shape[1:] == x_TI.shape[1:] == norm_weight_I.shape
    assert update_TI is None or (update_TI.shape == x_TI.shape and update_TI.dtype == x_TI.dtype)
    assert bias_O is None or (bias_O.shape == weight_OI.shape[:1] and bias_O.dtype == x_TI.dtype)
    assert not is_gated or len(weight_OI) % 2 == 0
    arguments = x_TI, update_TI, norm_weight_I, eps, weight_OI, bias_O, is_gated
    triton_kernel = find_triton_kernel("norm_linear", x_TI)
    return norm_linear_reference(*arguments) if triton_kernel is None else triton_kernel(*arguments)


def norm_linear_reference(
    x_TI: Tensor,
    update_TI: Tensor | None,
    norm_weight_I: Tensor,
    eps: float,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    is_gated: bool,
) -> tuple[Tensor, Tensor]:
    residual_TI = x_TI.clone()
    out_TO = functional.linear(rms_norm_reference(residual_TI, norm_weight_I, eps, update_TI), weight_OI, bias_O)
    return residual_TI, silu_mul_reference(out_TO) if is_gated else out_TO
