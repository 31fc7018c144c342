"""A linear layer, and look-ups of embeddings, whose weight is stored in planes of codes and scales.

Shape legend: T tokens, I inputs, O outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.code_planes import CodePlanes
from kernels.dispatch import call
from kernels.operations.code_planes import dequantize_planes, take_outputs


def planes_linear(x_TI: Tensor, planes: CodePlanes, bias_O: Tensor | None, out_TO: Tensor | None = None) -> Tensor:
    """Returns x W^T + b in `out_TO` or a new tensor [T, O]; the outputs of a token in `out_TO` are contiguous.

    Few tokens are multiplied with the codes, which loses nothing. Many are multiplied with the values, rounded to the
    tokens' dtype.
    """
    assert x_TI.shape[1] == planes.num_inputs
    if out_TO is None:
        out_TO = x_TI.new_empty(len(x_TI), planes.num_outputs)
    assert out_TO.shape == (len(x_TI), planes.num_outputs)
    assert out_TO.stride(1) == 1
    call("planes_linear", x_TI, planes_linear_reference, x_TI.contiguous(), planes, bias_O, out_TO)
    return out_TO


def planes_linear_reference(x_TI: Tensor, planes: CodePlanes, bias_O: Tensor | None, out_TO: Tensor) -> None:
    bias = None if bias_O is None else bias_O.float()
    out_TO.copy_(functional.linear(x_TI.float(), dequantize_planes(planes), bias))


def look_up_planes(planes: CodePlanes, row_T: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the values of these outputs [T, I]; `row_T` holds integers."""
    return call("look_up_planes", planes.low, look_up_planes_reference, planes, row_T, dtype)


def look_up_planes_reference(planes: CodePlanes, row_T: Tensor, dtype: torch.dtype) -> Tensor:
    return dequantize_planes(take_outputs(planes, row_T)).to(dtype)
