"""The stages of a decoder, one after another: embedding, ranges of layers, head. A process may have some of them.

A stage pops its own weights alone, and passes the residual stream on to the next one.

Shape legend: T tokens of the step, E embedding size, A values of all query heads, N tokens with logits, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from kernels.arguments.rows import RopeTables
from scheduler_proc.computing.model.adapters import Adapters
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.embedding import TOKENS, Embedding, embedding_parameters
from scheduler_proc.computing.model.blocks.head import Head, head_parameters
from scheduler_proc.computing.model.blocks.layer import Layer, Stream, layer_parameters
from scheduler_proc.computing.model.blocks.layer_inputs import LayerInputs, input_parameters
from scheduler_proc.computing.model.blocks.mtp_inputs import mtp_parameters
from scheduler_proc.computing.model.blocks.norm import Norm, norm_parameters
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.model.position_biases import POSITION_BIAS, bias_parameters, spread_buckets
from scheduler_proc.computing.model.rope_tables import make_rope_tables
from scheduler_proc.computing.model.span_rows import SpanRows
from scheduler_proc.computing.model.workspace import Activations
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.features.axes import AXES
from scheduler_proc.computing.step.features.placed_rows import PLACED_ROWS
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.rows import StepRows

FINAL_NORM = "final_norm"

LayerKind = tuple[LayerDescription, tuple[str, ...]]
"""A description and the formats of the weights: layers of one kind compute the same on different weights."""

Memory = Sequence[Sequence[Any]]
"""By layer, what each of its mixers keeps of tokens: `Mixer` in `blocks/layer.py`."""

ComputeLayers = Callable[[Callable[[int], None], Sequence[int]], None]
"""Computes the layers with these places in their stage, in order, with the given function for one layer."""


def model_parameters(model: ModelDescription, layers: range | None = None) -> list[Parameter]:
    """Returns the parameters of the whole model or of some layers, as declared by their blocks.

    The first layer comes with the embedding, the last one with the head.
    """
    layers = range(len(model.layers)) if layers is None else layers
    has_end = layers.stop == len(model.layers)
    has_embedding = layers.start == 0 or (has_end and model.mtp is not None)
    stages = [embedding_parameters(model), input_parameters(model)] if has_embedding else []
    stages += [layer_parameters(f"layers.{index}", model.layers[index], model.hidden_size) for index in layers]
    stages.append(bias_parameters(model))
    if has_end:
        stages.append(_head_parameters(model))
    found = {parameter.name: parameter for stage in stages for parameter in stage}
    if TOKENS in found and len(layers) < len(model.layers) and (model.mtp is None or not has_end):
        # A stage has the tied head or its embedding, in a format for it.
        found[TOKENS] = replace(found[TOKENS], role="linear" if has_end else "embedding")
    return list(found.values())


def _head_parameters(model: ModelDescription) -> list[Parameter]:
    return [
        *norm_parameters(FINAL_NORM, model.final_norm),
        *(embedding_parameters(model)[:1] if model.has_tied_head else head_parameters(model)),
        *mtp_parameters(model),
        *(model.classifier.parameters(model.hidden_size) if model.classifier is not None else ()),
    ]


def begin_stream(
    model: ModelDescription, residual_TE: Tensor, rows: StepRows, room: Activations, inputs: Tensor | None = None
) -> Stream:
    """Returns the stream before the model's first layer, with room for the outputs of attention."""
    attended_TA = room.attended
    if attended_TA is None:
        attended_TA = residual_TE.new_empty(len(residual_TE), model.attended_size)
    return Stream(residual_TE, None, attended_TA, room, rows, inputs)


class EmbeddingStage:
    """Begins the stream with the embeddings of tokens."""

    def __init__(
        self,
        model: ModelDescription,
        weights: Weights,
        parallel: ParallelGroup,
        dtype: torch.dtype,
        adapters: Adapters | None = None,
    ):
        self.block = Embedding(model, weights, parallel, dtype)
        self._model, self._adapters = model, adapters
        self._layer_inputs = LayerInputs(model, weights) if model.layer_inputs_size else None
        takes_spans = parallel.size == 1 and not model.num_positions
        device = self.block.tokens_VE.stored.device
        sizes = model.hidden_size, model.row_size
        self.span_rows = SpanRows(sizes, dtype, device) if takes_spans else None

    def begin(self, step: StepInputs, room: Activations) -> Stream:
        residual_TE, lora = self.block(step, room.residual), None
        slots_T = step.view(ADAPTERS)
        if self._adapters is not None and slots_T is not None:
            self._adapters.tables.embed(step, slots_T, residual_TE)
            lora = self._adapters.slots.linears
        placed_T = step.view(PLACED_ROWS)
        if self.span_rows is not None and placed_T is not None:
            self.span_rows.overwrite(residual_TE, placed_T)
        rows = StepRows(step, lora=lora)
        inputs, own = None, rows
        if self._layer_inputs is not None:
            if placed_T is not None:
                ids_T = step.token_ids.masked_fill(placed_T >= 0, self._model.padding_id)
                own = replace(rows, step=replace(step, token_ids=ids_T))
            inputs = self._layer_inputs(own, residual_TE, room)
        stream = begin_stream(self._model, residual_TE, rows, room, inputs)
        if placed_T is not None and self._model.deepstack_layers:
            stream.span_rows = self.span_rows
        return stream


class LayerStage:
    """The layers of the model with these indices; `max_model_len` positions are supported."""

    def __init__(
        self, model: ModelDescription, layers: range, weights: Weights, max_model_len: int, parallel: ParallelGroup
    ):
        self._model, self._indices = model, layers
        device = next(iter(weights.values())).stored.device
        bias_HX = spread_buckets(pop_tensor(weights, POSITION_BIAS)) if model.num_buckets else None
        rope_tables = cache(partial(make_rope_tables, num_positions=max_model_len, device=device))
        context = BlockContext(parallel, rope_tables, bias_HX)
        self._axes: tuple[RopeTables, Tensor] | None = None
        for mixer in (mixer for index in layers for mixer in model.layers[index].mixers):
            if mixer.has_axes and isinstance(mixer, AttentionDescription) and mixer.rope is not None:
                axes_X = torch.tensor(mixer.rope.axes, device=device)
                self._axes = rope_tables(mixer.rope, mixer.head_dim), axes_X
        self._layers: list[Layer] = []
        self.kinds: list[LayerKind] = []
        for index in layers:
            layer = model.layers[index]
            names = [parameter.name for parameter in layer_parameters(f"layers.{index}", layer, model.hidden_size)]
            self.kinds.append((layer, tuple(weights[name].format.name for name in names if name in weights)))
            self._layers.append(Layer(index, layer, weights, context))

    def apply(
        self,
        stream: Stream,
        memory: Memory,
        compute_middle: ComputeLayers | None = None,
    ) -> None:
        """Applies the layers to the stream; `memory` is that of all layers of the model.

        `compute_middle` gets the layers between the first one, the last one that stores anything, and the last one.
        After the one that stores, the stream has only the head's tokens, if `step.head_rows` are known and the final
        hidden states of other tokens are not kept.
        """
        rows, step, indices = stream.rows, stream.rows.step, self._indices
        model_last, keeps_all = len(self._model.layers) - 1, self._model.mtp is not None
        if self._axes is not None and (axes := step.view(AXES)) is not None:
            axes.look_up(*self._axes)
        narrow_at = model_last if step.head_rows is None or keeps_all else self._model.last_storing

        def compute(place: int) -> None:
            index = indices[place]
            if index > narrow_at and not len(stream.residual):
                return
            is_narrow = index == narrow_at and not (keeps_all or step.all_go_to_head)
            self._layers[place].apply(stream, memory[index], is_narrow=is_narrow)
            if is_narrow and index < model_last:
                stream.rows, stream.attended = rows.at_head(), stream.attended[: len(stream.residual)]
            if stream.span_rows is not None and index in added:
                placed_T = stream.rows.step.view(PLACED_ROWS)
                assert placed_T is not None
                stream.span_rows.add_part(1 + added.index(index), stream.residual, stream.rows.select(placed_T))

        last, added, begin = len(indices) - 1, self._model.deepstack_layers, 0
        if stream.span_rows is not None:  # torch adds their parts, which `compute_middle` may not repeat
            begin = min(max(added) + 1 - indices.start, len(indices))
            for place in range(begin):
                compute(place)
        storing = min(max(narrow_at - indices.start, 0), last)
        for first, end in ((begin, storing), (max(begin, storing), last), (max(begin, last), last + 1)):
            middle = range(first + 1, end)
            if first < end:
                compute(first)
            if compute_middle is None or len(middle) < 2:
                for place in middle:
                    compute(place)
            else:
                compute_middle(compute, middle)


class HeadStage:
    """Ends the stream: the final norm, and logits. `block` may be another model's."""

    def __init__(self, norm: Norm, block: Head, adapters: Adapters | None = None):
        self.block = block
        self._norm, self._adapters = norm, adapters

    def end(self, stream: Stream) -> Tensor:
        """Returns the final hidden states of the stream's tokens, [N, E]."""
        return self._norm(stream.residual, stream.update, stream.room.normed)

    def logits(self, hidden_NE: Tensor, out_NV: Tensor | None = None, slots_N: Tensor | None = None) -> Tensor:
        logits_NV = self.block(hidden_NE, out_NV)
        if self._adapters is not None and slots_N is not None:
            self._adapters.tables.score(hidden_NE, slots_N, logits_NV)
        return logits_NV

    def best_tokens(self, hidden_NE: Tensor) -> Tensor | None:
        return self.block.best_tokens(hidden_NE) if self._adapters is None else None

    def token_logits(self, hidden_NE: Tensor, ids_NL: Tensor) -> Tensor | None:
        has_own = self._adapters is not None and self._adapters.tables
        return None if has_own else self.block.token_logits(hidden_NE, ids_NL)
