"""A linear layer whose weight is a plain tensor.

Shape legend: T tokens, I inputs, O outputs.
"""

from torch import Tensor
from torch.nn import functional

from kernels.dispatch import call


def plain_linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Returns x W^T + b, [T, O]. With fixed launches (`--deterministic`) a GPU has a kernel for it; else torch
    multiplies, whose order of sums may depend on the number of tokens."""
    return call("plain_linear", x_TI, functional.linear, x_TI, weight_OI, bias_O)
