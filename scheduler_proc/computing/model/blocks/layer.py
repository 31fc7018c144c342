"""A layer: mixers, an MLP, their norms, and the residual stream that passes through all layers.

Shape legend: T tokens, E embedding size, A values of all query heads in the layer that has the most.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from kernels.operations.rescale import rescale
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.few_rows import find_few_rows
from scheduler_proc.computing.model.blocks.layer_inputs import InputGate, gate_parameters
from scheduler_proc.computing.model.blocks.norm import Norm, norm_parameters
from scheduler_proc.computing.model.blocks.registry import BLOCKS
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import BlockDescription, LayerDescription, NormDescription
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.model.span_rows import SpanRows
from scheduler_proc.computing.model.workspace import Activations, LayerRows
from scheduler_proc.computing.step.rows import StepRows


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
    span_rows: SpanRows | None = None
    """The rows of the step's spans, parts of which are added after some layers."""


def layer_parameters(name: str, layer: LayerDescription, hidden_size: int) -> list[Parameter]:
    norms = [norm_parameters(f"{name}.{norm_name}", norm) for norm_name, norm in _norms_of(layer).items()]
    return [
        *(parameter for block in layer.blocks for parameter in block.parameters(name, hidden_size)),
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


class Mixer(Protocol):
    """A mixer with its weights. One with parts in the cache has a function `open_cache` for its tensors."""

    def __call__(self, normed_TE: Tensor, layer_rows: LayerRows, memory: Any) -> Tensor:
        """Returns the update of the residual stream, [T, E].

        `memory`: what `open_cache` has returned, or the tensors of its state; `None` if it keeps nothing. It first
        stores what it keeps of the step's tokens.
        """
        ...


class Layer:
    def __init__(self, index: int, layer: LayerDescription, weights: Weights, context: BlockContext):
        name = f"layers.{index}"

        def make(block: BlockDescription) -> Any:
            return BLOCKS[type(block)](name, block, weights, context)

        self._few_rows = find_few_rows(name, layer, weights, context)
        norms = {norm: Norm(f"{name}.{norm}", description, weights) for norm, description in _norms_of(layer).items()}
        self._attention_norm, self._attention_out_norm = norms.get("attention_norm"), norms.get("attention_out_norm")
        self._mlp_norm, self._mlp_out_norm = norms.get("mlp_norm"), norms.get("mlp_out_norm")
        self._mixers: Sequence[Mixer] = [make(mixer) for mixer in layer.mixers]
        self._mlp: Mlp | None = None if layer.mlp is None else make(layer.mlp)
        self._is_parallel = layer.is_parallel
        self._input_norm = norms.get("input_norm")
        self._input_gate = InputGate(name, weights, layer.input_size) if layer.input_size else None
        self._inputs = slice(index * layer.input_size, (index + 1) * layer.input_size)
        self._scale = float(pop_tensor(weights, f"{name}.scale")) if layer.has_scale else 1.0

    def apply(self, stream: Stream, memory: Sequence[Any], *, is_narrow: bool) -> None:
        """Applies this layer to the stream; each mixer stores what it keeps of all tokens in its part of `memory`.

        With `is_narrow`, only `step.head_tokens` are computed after that: the last layer needs no others.
        """
        rows, room = stream.rows, stream.room
        if self._few_rows is not None and not is_narrow and self._few_rows.takes(rows, stream.residual):
            self._few_rows.apply(_add_and_norm(None, stream), rows, stream.attended, memory[0])
            stream.update = None
            return
        narrow = None
        if is_narrow:
            narrow = rows.narrowed(rows.step.head_tokens), room.take(len(rows.step.head_tokens))
        normed_TE = None
        if self._mixers:
            normed_TE = _add_and_norm(self._attention_norm, stream)
            layer_rows = LayerRows(rows, room, stream.attended, narrow)
            update_TE = self._mix(normed_TE, layer_rows, memory)
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

    def _mix(self, normed_TE: Tensor, layer_rows: LayerRows, memory: Sequence[Any]) -> Tensor:
        """Returns the update that all mixers together compute."""
        first, *others = self._mixers
        update_TE = first(normed_TE, layer_rows, memory[0])
        for mixer, own in zip(others, memory[1:], strict=True):
            rows, room, attended, narrow = layer_rows
            narrow = narrow and (narrow[0], replace(narrow[1], update=narrow[1].second_update))
            own_rows = LayerRows(rows, replace(room, update=room.second_update), attended, narrow)
            rescale(update_TE, added_TE=mixer(normed_TE, own_rows, own))
        return update_TE

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
