"""The access of blocks to a model's weights."""

from torch import Tensor

from kernels.formats.weight_format import Linear, Weight
from kernels.operations.gelu import GeluKind
from scheduler_proc.computing.parallel import ParallelGroup

Weights = dict[str, Weight]
"""A rank's parameters, by name. A block pops the ones it uses, so that each is in memory only once."""


def pop_tensor(weights: Weights, name: str) -> Tensor:
    return weights.pop(name).stored


def pop_linear(weights: Weights, name: str, activation: GeluKind | None = None) -> Linear:
    """Returns the linear layer `name`, with its bias if it has one, followed by the GELU that `activation` names."""
    return weights.pop(f"{name}.weight").linear(_pop_bias(weights, name), activation)


def pop_row_parallel(weights: Weights, name: str, parallel: ParallelGroup) -> Linear:
    """Returns the linear layer `name`, whose inputs are divided among the ranks; all ranks get the sum."""
    weight, bias_O = weights.pop(f"{name}.weight"), _pop_bias(weights, name)
    if parallel.size == 1:
        return weight.linear(bias_O, None)
    return weight.row_parallel(None if parallel.rank else bias_O, parallel.all_reduce, parallel.size)


def _pop_bias(weights: Weights, name: str) -> Tensor | None:
    bias = weights.pop(f"{name}.bias", None)
    return None if bias is None else bias.stored
