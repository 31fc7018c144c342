"""A norm of the residual stream, with the addition of the update before it.

Shape legend: T tokens, E embedding size.
"""

from torch import Tensor

from kernels.operations.layer_norm import layer_norm
from kernels.operations.rms_norm import rms_norm
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import NormDescription
from scheduler_proc.computing.model.parameters import Parameter


def norm_parameters(name: str, norm: NormDescription) -> list[Parameter]:
    parts = ("weight", "bias") if norm.kind == "layer" else ("weight",)
    return [Parameter(f"{name}.{part}", (norm.size,), "norm" if part == "weight" else "bias") for part in parts]


def pop_scale(weights: Weights, name: str, norm: NormDescription) -> Tensor:
    """Returns what the norm multiplies by."""
    weight = pop_tensor(weights, f"{name}.weight")
    return weight + 1 if norm.is_zero_centered else weight


class Norm:
    def __init__(self, name: str, norm: NormDescription, weights: Weights):
        self.weight_E = pop_scale(weights, name, norm)
        self._bias_E = pop_tensor(weights, f"{name}.bias") if norm.kind == "layer" else None
        self._eps = norm.eps

    def __call__(self, residual_TE: Tensor, update_TE: Tensor | None, out_TE: Tensor | None) -> Tensor:
        """Adds the update to the residual stream in place; returns the norm of the sum, in `out_TE` if given."""
        if self._bias_E is None:
            return rms_norm(residual_TE, self.weight_E, self._eps, update_TE, out_TE)
        return layer_norm(residual_TE, self.weight_E, self._bias_E, self._eps, update_TE, out_TE)
