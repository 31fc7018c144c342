"""The access of blocks to a model's weights."""

from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

from torch import Tensor

from kernels.formats.weight_format import Linear, Weight
from kernels.operations.expert_linear import ExpertLinear
from kernels.operations.gelu import GeluKind, gelu
from kernels.operations.lora_linear import lora_linear
from scheduler_proc.computing.parallel import ALONE, ParallelGroup
from scheduler_proc.computing.step.rows import StepRows

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
    weight, bias_O = weights.pop(f"{name}.weight"), pop_bias(weights, name)
    linear = weight.linear(bias_O, activation)
    if activation is None:
        return _of_step(name, linear)
    return _of_step(name, linear, cache(lambda: weight.linear(bias_O, None)), partial(gelu, kind=activation))


def pop_experts(weights: Weights, name: str, parallel: ParallelGroup = ALONE) -> ExpertLinear:
    """Returns the linear layers `name` of experts, with their biases if they have some.

    With several ranks their inputs are divided; their outputs are to be summed, and one rank has the biases.
    """
    weight, bias_O = weights.pop(f"{name}.weight"), pop_bias(weights, name)
    return weight.experts(None if parallel.rank else bias_O, parallel if parallel.size > 1 else None)


def pop_row_parallel(weights: Weights, name: str, parallel: ParallelGroup) -> StepLinear:
    """Returns the linear layer `name`, whose inputs are divided among the ranks; all ranks get the sum."""
    weight, bias_O = weights.pop(f"{name}.weight"), pop_bias(weights, name)
    if parallel.size == 1:
        return _of_step(name, weight.linear(bias_O, None))
    return _of_step(name, weight.row_parallel(None if parallel.rank else bias_O, parallel.all_reduce, parallel.size))


def _of_step(
    name: str,
    linear: Linear,
    make_plain: Callable[[], Linear] | None = None,
    activate: Callable[[Tensor], Tensor] | None = None,
) -> StepLinear:
    """Returns a layer whose weight is the same for all tokens, and is updated by the adapters of those that have one.

    If it has an activation, that follows the updates: `make_plain` returns the layer without it.
    """

    def compute(x_TI: Tensor, rows: StepRows, out_TO: Tensor | None = None) -> Tensor:
        lora = None if rows.lora is None else rows.lora.get(name)
        if lora is None:
            return linear(x_TI, out_TO)
        plain = linear if make_plain is None else make_plain()
        updated_TO = lora_linear(x_TI, lora, rows.adapters, plain(x_TI, out_TO))
        return updated_TO if activate is None else activate(updated_TO)

    return compute


def pop_bias(weights: Weights, name: str) -> Tensor | None:
    """Returns the bias of the layer `name`, `None` if it has none."""
    bias = weights.pop(f"{name}.bias", None)
    return None if bias is None else bias.stored
