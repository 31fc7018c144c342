"""The activation of Nemotron-H's MLPs and experts.

Shape legend: T tokens, F MLP size. Formula: So et al., "Primer: Searching for Efficient Transformers", 2021.
"""

from torch import Tensor

from kernels.dispatch import call


def relu_squared(x_TF: Tensor) -> Tensor:
    """Returns max(x, 0)², in the memory of x."""
    assert x_TF.is_contiguous()
    return call("relu_squared", x_TF, relu_squared_reference, x_TF)


def relu_squared_reference(x_TF: Tensor) -> Tensor:
    return x_TF.relu_().square_()
