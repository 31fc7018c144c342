"""A norm of the residual stream, with the addition of the update before it.

Shape legend: T tokens, E embedding size.
"""

import torch
from torch import Tensor

from kernels.operations.layer_norm import layer_norm
from kernels.operations.rms_norm import rms_norm
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import NormDescription
from scheduler_proc.computing.model.parameters import Parameter, Split


def norm_parameters(name: str, norm: NormDescription, split: Split = None) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", (norm.size,), "norm", split)
    has_bias = norm.kind == "layer" and norm.has_bias
    return [weight, Parameter(f"{name}.bias", (norm.size,), "bias", split)] if has_bias else [weight]


def pop_scale(weights: Weights, name: str, norm: NormDescription) -> Tensor:
    """Returns what the norm multiplies by."""
    weight = pop_tensor(weights, f"{name}.weight")
    return weight + 1 if norm.is_zero_centered else weight


class Norm:
    def __init__(self, name: str, norm: NormDescription, weights: Weights):
        self.weight_E = pop_scale(weights, name, norm)
        self._bias_E = None
        if norm.kind == "layer":
            self._bias_E = pop_tensor(weights, f"{name}.bias") if norm.has_bias else torch.zeros_like(self.weight_E)
        self._eps, self._replaces_stream, self._only_scales = norm.eps, norm.replaces_stream, norm.kind == "scale"

    def __call__(self, residual_TE: Tensor, update_TE: Tensor | None, out_TE: Tensor | None) -> Tensor:
        """Adds the update to the residual stream in place; returns the norm of the sum, in `out_TE` if given.

        A norm that replaces the stream returns the stream.
        """
        if self._only_scales:
            return residual_TE.mul_(self.weight_E)
        out_TE = residual_TE if self._replaces_stream else out_TE
        if self._bias_E is None:
            normed_TE = rms_norm(residual_TE, self.weight_E, self._eps, update_TE, out_TE)
        else:
            normed_TE = layer_norm(residual_TE, self.weight_E, self._bias_E, self._eps, update_TE, out_TE)
        is_elsewhere = self._replaces_stream and normed_TE.data_ptr() != residual_TE.data_ptr()
        return residual_TE.copy_(normed_TE) if is_elsewhere else normed_TE
