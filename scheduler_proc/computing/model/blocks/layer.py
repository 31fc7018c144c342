"""A layer: attention, a recurrent block, an MLP, their norms, and the residual stream that passes through all layers.

Shape legend: T tokens, E embedding size, A values of all query heads in the layer that has the most.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import RopeTables
from kernels.arguments.state_rows import LayerState
from kernels.operations.rescale import rescale
from scheduler_proc.computing.model.blocks.attention import Attention, attention_parameters
from scheduler_proc.computing.model.blocks.layer_inputs import InputGate, gate_parameters
from scheduler_proc.computing.model.blocks.norm import Norm, norm_parameters
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import LayerDescription, NormDescription
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.model.workspace import Activations, LayerRows
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.step.rows import StepRows

BLOCKS = "scheduler_proc.computing.model.blocks"


@dataclass
class Stream:
    """The residual stream of a step on its way through the layers."""

    residual: Tensor
    """[T, E]"""
    update: Tensor | None
    """[T, E]: the update that the next norm adds to it."""
    attended: Tensor
    """[T, A]: buffer for what a layer's output linear reads, before the next layer overwrites it."""
    room: Activations
    rows: StepRows
    inputs: Tensor | None = None
    """[T, values of all layers]: further inputs of single layers."""


def layer_parameters(name: str, layer: LayerDescription, hidden_size: int) -> list[Parameter]:
    norms = [norm_parameters(f"{name}.{norm_name}", norm) for norm_name, norm in _norms_of(layer).items()]
    blocks = (block.parameters(name, hidden_size) for block in (layer.recurrent, layer.mlp) if block is not None)
    return [
        *(attention_parameters(name, layer.attention, hidden_size) if layer.attention is not None else []),
        *(parameter for block in blocks for parameter in block),
        *gate_parameters(name, layer, hidden_size),
        *([Parameter(f"{name}.scale", (1,), "norm")] if layer.has_scale else []),
        *(parameter for norm in norms for parameter in norm),
    ]


def _norms_of(layer: LayerDescription) -> dict[str, NormDescription]:
    names = ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm", "input_norm")
    return {name: norm for name in names if (norm := getattr(layer, name)) is not None}


class Mlp(Protocol):
    """An MLP with its weights."""

    def __call__(self, normed_TE: Tensor, rows: StepRows, room: Activations) -> Tensor:
        """Returns the update of the residual stream, [T, E], possibly in `room`."""
        ...


class Recurrent(Protocol):
    """A recurrent block with its weights."""

    def __call__(self, normed_TE: Tensor, layer_rows: LayerRows, state: LayerState) -> Tensor:
        """Returns the update of the residual stream, [T, E]; reads and stores states as `StateRows` describes."""
        ...


def make_block(layer: str, description: Any, weights: Weights, parallel: ParallelGroup) -> Any:
    """Returns the class `Block` of the file that the description names, with its weights; `None` for `None`."""
    if description is None:
        return None
    return import_module(f"{BLOCKS}.{description.block}").Block(layer, description, weights, parallel)


class Layer:
    def __init__(
        self,
        index: int,
        layer: LayerDescription,
        weights: Weights,
        rope_tables: RopeTables | None,
        parallel: ParallelGroup,
        bias_HX: Tensor | None = None,
    ):
        name = f"layers.{index}"
        norms = {norm: Norm(f"{name}.{norm}", description, weights) for norm, description in _norms_of(layer).items()}
        self._attention_norm, self._attention_out_norm = norms.get("attention_norm"), norms.get("attention_out_norm")
        self._mlp_norm, self._mlp_out_norm = norms.get("mlp_norm"), norms.get("mlp_out_norm")
        arguments = weights, rope_tables, parallel, bias_HX
        self._attention = layer.attention and Attention(name, layer.attention, *arguments)
        self._recurrent: Recurrent | None = make_block(name, layer.recurrent, weights, parallel)
        self._mlp: Mlp | None = make_block(name, layer.mlp, weights, parallel)
        self._is_parallel = layer.is_parallel
        self._input_norm = norms.get("input_norm")
        self._input_gate = InputGate(name, weights, layer.input_size) if layer.input_size else None
        self._inputs = slice(index * layer.input_size, (index + 1) * layer.input_size)
        self._scale = float(pop_tensor(weights, f"{name}.scale")) if layer.has_scale else 1.0

    def apply(self, stream: Stream, cache: PagedKV | None, state: LayerState, *, is_narrow: bool) -> None:
        """Applies this layer to the stream; stores the K and V of all tokens in `cache`, and states in `state`.

        With `is_narrow`, only `step.head_tokens` are computed after that: the last layer needs no others.
        """
        rows, room = stream.rows, stream.room
        narrow = None
        if is_narrow:
            narrow = rows.narrowed(rows.step.head_tokens), room.take(len(rows.step.head_tokens))
        normed_TE = None
        if self._attention is not None or self._recurrent is not None:
            normed_TE = _add_and_norm(self._attention_norm, stream)
            layer_rows = LayerRows(rows, room, stream.attended, narrow)
            update_TE = self._mix(normed_TE, layer_rows, cache, state)
            stream.update = _norm_output(self._attention_out_norm, update_TE)
        elif narrow is not None and stream.update is not None:
            stream.update = stream.update[rows.step.head_tokens]
        if narrow is not None:
            stream.residual = stream.residual[rows.step.head_tokens]
            stream.rows, stream.room = narrow
            if stream.inputs is not None:
                stream.inputs = _keep(stream.inputs[rows.step.head_tokens], stream.room.layer_inputs)
        if self._is_parallel:
            assert normed_TE is not None
            self._add_parallel(stream, stream.rows.select(normed_TE))
            return
        if self._mlp is not None:
            normed_TE = _add_and_norm(self._mlp_norm, stream)
            stream.update = _norm_output(self._mlp_out_norm, self._mlp(normed_TE, stream.rows, stream.room))
        if self._input_gate is not None and stream.inputs is not None:
            residual_TE, inputs_TP = _add_and_norm(None, stream), stream.inputs[:, self._inputs]
            update_TE = self._input_gate(residual_TE, inputs_TP, stream.rows, stream.room)
            stream.update = _norm_output(self._input_norm, update_TE)
        if self._scale != 1:
            rescale(_add_and_norm(None, stream), self._scale)
            stream.update = None

    def _mix(self, normed_TE: Tensor, layer_rows: LayerRows, cache: PagedKV | None, state: LayerState) -> Tensor:
        """Returns the update that attention, the recurrent block or both together compute."""
        room, narrow, update_TE = layer_rows.room, layer_rows.narrow, None
        if self._attention is not None:
            update_TE = self._attention(normed_TE, layer_rows, cache)
        if self._recurrent is None:
            assert update_TE is not None
            return update_TE
        if update_TE is not None:
            narrow = narrow and (narrow[0], replace(narrow[1], update=narrow[1].beside))
            layer_rows = layer_rows._replace(room=replace(room, update=room.beside), narrow=narrow)
        own_TE = self._recurrent(normed_TE, layer_rows, state)
        return own_TE if update_TE is None else rescale(update_TE, added_TE=own_TE)

    def _add_parallel(self, stream: Stream, normed_TE: Tensor) -> None:
        """Adds attention's output to the stream after the MLP's input; `normed_TE` is what attention read."""
        assert self._mlp is not None
        if self._mlp_norm is not None:
            normed_TE = self._mlp_norm(stream.residual, None, stream.room.normed)
        rescale(stream.residual, added_TE=stream.update)
        stream.update = _norm_output(self._mlp_out_norm, self._mlp(normed_TE, stream.rows, stream.room))


def _keep(inputs: Tensor, room: Tensor | None) -> Tensor:
    """Returns the tensor in `room`, if given: calls of later layers are replayed with its address."""
    return inputs if room is None else room.copy_(inputs)


def _add_and_norm(norm: Norm | None, stream: Stream) -> Tensor:
    """Adds the update to the residual stream; returns its norm or, without a norm, the stream itself."""
    if norm is not None:
        return norm(stream.residual, stream.update, stream.room.normed)
    if stream.update is not None:
        rescale(stream.residual, added_TE=stream.update)
    return stream.residual


def _norm_output(norm: Norm | None, update_TE: Tensor) -> Tensor:
    """Returns the norm of an output, possibly in the same memory."""
    return update_TE if norm is None else norm(update_TE, None, update_TE)
