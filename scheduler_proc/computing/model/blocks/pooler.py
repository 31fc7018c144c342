"""What a model makes of pooled hidden states: the Dense layers of its vectors, and its classification head.

Everything is computed in float32, and a row's numbers do not depend on the other rows.

Shape legend: N pooled rows, E embedding size, D values of a vector, O outputs, I inputs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.operations.layer_norm import layer_norm
from kernels.operations.packed_linear import has_packed_kernel
from scheduler_proc.computing.model.blocks.weights import Weights, pop_bias, pop_tensor
from scheduler_proc.computing.model.description import (
    CLASSIFIER_DENSE,
    CLASSIFIER_NORM,
    CLASSIFIER_OUT,
    ClassifierDescription,
)

Layer = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Layer] = {
    "identity": lambda x_NO: x_NO,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


class DenseLayer(NamedTuple):
    """A linear layer with its activation, as sentence-transformers stores it."""

    weight: Tensor
    bias: Tensor | None
    activation: str


class Pooler:
    def __init__(
        self,
        head: ClassifierDescription | None,
        weights: Weights,
        dense: Sequence[DenseLayer],
        device: torch.device,
    ):
        self._dense = [_make_layer(weight.to(device), _to(bias, device), name) for weight, bias, name in dense]
        self._head = [] if head is None else _make_head(head, weights)

    def embed(self, vectors_NE: Tensor) -> Tensor:
        """Returns the vectors after the Dense layers, [N, D], not normalised."""
        return _apply(self._dense, vectors_NE)

    def classify(self, vectors_NE: Tensor) -> Tensor:
        """Returns the logits of the model's labels, [N, O]."""
        assert self._head, "the model has no classification head"
        return _apply(self._head, vectors_NE)


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def _apply(layers: Sequence[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _make_head(head: ClassifierDescription, weights: Weights) -> list[Layer]:
    def pop(name: str) -> tuple[Tensor, Tensor | None]:
        return pop_tensor(weights, f"{name}.weight"), pop_bias(weights, name)

    layers: list[Layer] = []
    if head.activation is not None:
        layers.append(_make_layer(*pop(CLASSIFIER_DENSE), head.activation))
    if head.norm is not None:
        layers.append(_make_norm(*pop(CLASSIFIER_NORM), head.norm.eps))
    return [*layers, _make_layer(*pop(CLASSIFIER_OUT), "identity")]


def _make_layer(weight_OI: Tensor, bias_O: Tensor | None, activation: str) -> Layer:
    weight = (PACKED if has_packed_kernel(weight_OI) else PLAIN).allocate(
        tuple(weight_OI.shape), torch.float32, weight_OI.device
    )
    weight.set_rows(0, weight_OI)
    linear, activate = weight.finish().linear(bias_O, None), ACTIVATIONS[activation]
    return lambda x_NI: activate(linear(x_NI))


def _make_norm(weight_E: Tensor, bias_E: Tensor | None, eps: float) -> Layer:
    bias_E = torch.zeros_like(weight_E) if bias_E is None else bias_E
    return lambda x_NE: layer_norm(x_NE, weight_E, bias_E, eps)
