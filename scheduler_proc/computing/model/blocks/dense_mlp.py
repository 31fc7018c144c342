"""A dense MLP, gated or not.

Shape legend: T tokens, E embedding size.
"""

from torch import Tensor

from kernels.operations.gelu import GeluKind
from kernels.operations.silu_mul import silu_mul
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear, pop_row_parallel
from scheduler_proc.computing.model.description import MlpDescription
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, linear_parameters
from scheduler_proc.computing.model.workspace import Activations
from scheduler_proc.computing.parallel import ParallelGroup

GELUS: dict[str, GeluKind] = {"gelu_tanh": "tanh", "gelu": "exact"}
"""The activations that are fused into the first linear."""


def mlp_parameters(layer: str, mlp: MlpDescription, hidden_size: int) -> list[Parameter]:
    by_inner = ByRows(((mlp.size, 1),) * (mlp.in_size // mlp.size))
    return [
        *linear_parameters(f"{layer}.mlp_in", mlp.in_size, hidden_size, mlp.has_bias, by_inner),
        *linear_parameters(f"{layer}.mlp_out", hidden_size, mlp.size, mlp.has_bias, ByColumns()),
    ]


class DenseMlp:
    def __init__(self, layer: str, mlp: MlpDescription, weights: Weights, parallel: ParallelGroup):
        self._is_gated = mlp.is_gated
        self._linear_in = pop_linear(weights, f"{layer}.mlp_in", GELUS.get(mlp.activation))
        self._linear_out = pop_row_parallel(weights, f"{layer}.mlp_out", parallel)

    def __call__(self, normed_TE: Tensor, room: Activations) -> Tensor:
        inner = self._linear_in(normed_TE, room.inner)
        return self._linear_out(silu_mul(inner, room.gated) if self._is_gated else inner, room.update)
