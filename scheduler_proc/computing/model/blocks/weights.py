"""The access of blocks to a model's weights."""

from typing import Protocol

from torch import Tensor

from kernels.formats.weight_format import Linear, Weight
from kernels.operations.expert_linear import ExpertLinear
from kernels.operations.gelu import GeluKind
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.step.inputs import StepRows

Weights = dict[str, Weight]
"""A rank's parameters, by name. A block pops the ones it uses, so that each is in memory only once."""


class StepLinear(Protocol):
    """A linear layer of a block. It knows which tokens of the step its inputs belong to."""

    def __call__(self, x_TI: Tensor, rows: StepRows, out_TO: Tensor | None = None, /) -> Tensor:
        """Returns [T, O], possibly in `out_TO`."""
        ...


def pop_tensor(weights: Weights, name: str) -> Tensor:
    return weights.pop(name).stored


def pop_linear(weights: Weights, name: str, activation: GeluKind | None = None) -> StepLinear:
    """Returns the linear layer `name`, with its bias if it has one, followed by the GELU that `activation` names."""
    return _of_step(weights.pop(f"{name}.weight").linear(_pop_bias(weights, name), activation))


def pop_experts(weights: Weights, name: str, *, has_bias: bool = True) -> ExpertLinear:
    """Returns the linear layers `name` of experts, with their biases if they have some and `has_bias`."""
    weight, bias_O = weights.pop(f"{name}.weight"), _pop_bias(weights, name)
    return weight.experts(bias_O if has_bias else None)


def pop_row_parallel(weights: Weights, name: str, parallel: ParallelGroup) -> StepLinear:
    """Returns the linear layer `name`, whose inputs are divided among the ranks; all ranks get the sum."""
    weight, bias_O = weights.pop(f"{name}.weight"), _pop_bias(weights, name)
    if parallel.size == 1:
        return _of_step(weight.linear(bias_O, None))
    return _of_step(weight.row_parallel(None if parallel.rank else bias_O, parallel.all_reduce, parallel.size))


def _of_step(linear: Linear) -> StepLinear:
    """Returns a layer whose weight is the same for all tokens."""
    return lambda x_TI, rows, out_TO=None: linear(x_TI, out_TO)


def _pop_bias(weights: Weights, name: str) -> Tensor | None:
    bias = weights.pop(f"{name}.bias", None)
    return None if bias is None else bias.stored
