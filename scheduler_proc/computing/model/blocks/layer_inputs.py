"""Inputs of single layers in addition to the residual stream: per-layer embeddings (PLE), as in Gemma 4.

Each token has, for each layer, values from a table of its own and values projected from its embedding. A layer gates
its values by the stream, and adds what a linear makes of them.

Shape legend: T tokens, E embedding size, L layers, P values of a layer.
"""

from torch import Tensor

from kernels.formats.embed import embed
from kernels.operations.gelu_mul import gelu_mul
from kernels.operations.rescale import rescale
from kernels.operations.rms_norm import rms_norm
from scheduler_proc.computing.model.blocks.norm import norm_parameters, pop_scale
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription
from scheduler_proc.computing.model.parameters import Parameter, linear_parameters
from scheduler_proc.computing.model.workspace import Activations, fit
from scheduler_proc.computing.step.rows import StepRows

TABLE, PROJECTION, NORM = "layer_inputs", "layer_projection", "layer_input_norm"


def input_parameters(model: ModelDescription) -> list[Parameter]:
    if model.layer_input_norm is None:
        return []
    return [
        Parameter(TABLE, (model.vocab_size, model.layer_inputs_size), "embedding"),
        *linear_parameters(PROJECTION, model.layer_inputs_size, model.hidden_size, has_bias=False, split=None),
        *norm_parameters(NORM, model.layer_input_norm),
    ]


def gate_parameters(name: str, layer: LayerDescription, hidden_size: int) -> list[Parameter]:
    """Returns the parameters of a layer that has inputs."""
    if not layer.input_size:
        return []
    return [
        *linear_parameters(f"{name}.input_gate", layer.input_size, hidden_size, has_bias=False, split=None),
        *linear_parameters(f"{name}.input_out", hidden_size, layer.input_size, has_bias=False, split=None),
    ]


class LayerInputs:
    """The sum of both kinds of values, of which the table's are multiplied by sqrt(P), divided by sqrt(2)."""

    def __init__(self, model: ModelDescription, weights: Weights):
        norm = model.layer_input_norm
        assert norm is not None
        self._size = model.layer_inputs_size
        self._table = weights.pop(TABLE)
        self._projection = pop_linear(weights, PROJECTION)
        self._weight_P = pop_scale(weights, NORM, norm) * norm.size**-0.5
        # The projection is divided by sqrt(E) before its norm, which only changes the norm's epsilon.
        self._eps = norm.eps * model.hidden_size
        self._factor = (norm.size / 2) ** 0.5

    def __call__(self, rows: StepRows, embedded_TE: Tensor, room: Activations) -> Tensor:
        """Returns [T, L * P], in `room` if it has room: calls of layers are replayed with its address."""
        step = rows.step
        values = embed(step.token_ids, step.positions, self._table, None, fit(room.inner, self._size))
        projected = self._projection(embedded_TE, rows, room.layer_inputs)
        projected_P = projected.view(-1, len(self._weight_P))
        sums = rms_norm(projected_P, self._weight_P, self._eps, None, projected_P).view(values.shape)
        sums = rescale(rescale(sums, added_TE=values), self._factor)
        own = room.layer_inputs
        return sums if own is None or sums.data_ptr() == own.data_ptr() else own.copy_(sums)


class InputGate:
    """What a layer makes of its inputs."""

    def __init__(self, name: str, weights: Weights, size: int):
        self._size = size
        self._gate = pop_linear(weights, f"{name}.input_gate")
        self._out = pop_linear(weights, f"{name}.input_out")

    def __call__(self, residual_TE: Tensor, input_TP: Tensor, rows: StepRows, room: Activations) -> Tensor:
        """Returns the update of the residual stream, [T, E], possibly in `room`."""
        gate_TP = self._gate(residual_TE, rows, fit(room.inner, self._size))
        gated_TP = gelu_mul(gate_TP, fit(room.gated, self._size), input_TP)
        return self._out(gated_TP, rows, room.update)
