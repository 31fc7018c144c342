"""One linear layer whose weight is stored in parts of different formats, as q, k and v of a GGUF file can be.

Shape legend: T tokens, I inputs, O outputs of all parts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.formats.weight_format import Linear, Weight
from kernels.operations.gelu import GeluKind


class StackedLinear:
    """Computes each part with the kernel of its format; the parts' outputs stand side by side in one tensor."""

    def __init__(self, parts: Sequence[Linear]):
        self._parts = parts

    def __call__(self, x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
        outputs = [part(x_TI) for part in self._parts]
        return torch.cat(outputs, dim=1) if out_TO is None else torch.cat(outputs, dim=1, out=out_TO)


def stack_linears(weights: Sequence[Weight], biases: Sequence[Tensor | None], activation: GeluKind | None) -> Linear:
    """Returns the layer of weights with the same inputs, in the order of their outputs.

    Weights of one format belong in one weight, which takes a single kernel: only different formats are stacked.
    """
    layers = [weight.linear(bias_O, activation) for weight, bias_O in zip(weights, biases, strict=True)]
    if len(layers) == 1:
        return layers[0]
    assert len({weight.format.name for weight in weights}) > 1
    return StackedLinear(layers)
