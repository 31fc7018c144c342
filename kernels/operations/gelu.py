"""The activation of GPT-2's MLP.

Shape legend: T tokens, F MLP size. Formula: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
"""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from kernels.dispatch import call

GeluKind = Literal["tanh", "exact"]


def gelu(x_TF: Tensor, kind: GeluKind) -> Tensor:
    """Returns gelu(x): with the normal distribution's own function (`exact`) or its `tanh` approximation."""
    assert kind in ("tanh", "exact")
    return call("gelu", x_TF, gelu_reference, x_TF.contiguous(), kind)


def gelu_reference(x_TF: Tensor, kind: GeluKind) -> Tensor:
    return functional.gelu(x_TF, approximate="tanh" if kind == "tanh" else "none")
