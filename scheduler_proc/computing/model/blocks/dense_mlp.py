"""A dense MLP, gated or not.

Shape legend: T tokens, E embedding size.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from kernels.operations.gelu import GeluKind
from kernels.operations.gelu_mul import gelu_mul
from kernels.operations.relu_squared import relu_squared
from kernels.operations.silu_mul import silu_mul
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear, pop_row_parallel
from scheduler_proc.computing.model.description import DenseMlpDescription
from scheduler_proc.computing.model.workspace import Activations, fit
from scheduler_proc.computing.step.rows import StepRows

GELUS: dict[str, GeluKind] = {"gelu_tanh": "tanh", "gelu": "exact"}
"""The activations that are fused into the first linear."""

ACTIVATIONS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "silu_gated": silu_mul,
    "gelu_tanh_gated": gelu_mul,
    "gelu_gated": partial(gelu_mul, kind="exact"),
    "quick_gelu": lambda inner_TF, _: inner_TF.mul_((inner_TF * 1.702).sigmoid_()),
    "relu2": lambda inner_TF, _: relu_squared(inner_TF),
}
"""The others, computed by themselves."""


class Block:
    def __init__(self, layer: str, mlp: DenseMlpDescription, weights: Weights, context: BlockContext):
        self._sizes = mlp.in_size, mlp.size
        self._is_gated = mlp.is_gated
        self._activate = ACTIVATIONS.get(mlp.activation)
        self._linear_in = pop_linear(weights, f"{layer}.mlp_in", GELUS.get(mlp.activation))
        self._linear_out = pop_row_parallel(weights, f"{layer}.mlp_out", context.parallel)

    def __call__(self, normed_TE: Tensor, rows: StepRows, room: Activations) -> Tensor:
        in_size, size = self._sizes
        inner = self._linear_in(normed_TE, rows, fit(room.inner, in_size))
        if self._activate is not None:
            inner = self._activate(inner, fit(room.gated, size) if self._is_gated else None)
        return self._linear_out(inner, rows, room.update)
