"""A linear layer whose weight is float8_e4m3fn codes in planes and whose products are those of codes: activations are
rounded to codes, too, with a scale per token.

Shape legend: T tokens, I inputs (P: padded to whole spans), O outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.code_planes import CodePlanes
from kernels.dispatch import call
from kernels.gpu.fusions import is_fused
from kernels.operations.code_planes import dequantize_planes
from kernels.operations.quantize_rows import quantize_rows


def has_scaled_products(planes: CodePlanes) -> bool:
    """True if linear layers of this weight are to use `scaled_linear`: it is fp8, and they are switched on."""
    return planes.low.dtype == torch.float8_e4m3fn and is_fused("fp8_products")


def scaled_linear(x_TI: Tensor, planes: CodePlanes, bias_O: Tensor | None, out_TO: Tensor) -> None:
    """Sets `out_TO` to x W^T + b, where x is rounded to codes; the outputs of a token in `out_TO` are contiguous.

    Products are summed in float32; those of the inputs that share a scale of the weight, by a GPU's rules for fp8.
    """
    assert out_TO.shape == (len(x_TI), planes.num_outputs)
    assert out_TO.stride(1) == 1
    codes_TP, scale_T = quantize_rows(x_TI, planes.low.shape[1])
    call("scaled_linear", x_TI, scaled_linear_reference, codes_TP, scale_T, planes, bias_O, out_TO)


def scaled_linear_reference(
    codes_TP: Tensor, scale_T: Tensor, planes: CodePlanes, bias_O: Tensor | None, out_TO: Tensor
) -> None:
    x_TI = codes_TP[:, : planes.num_inputs].float() * scale_T[:, None]
    bias = None if bias_O is None else bias_O.float()
    out_TO.copy_(functional.linear(x_TI, dequantize_planes(planes), bias))
