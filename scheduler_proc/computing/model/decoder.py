"""The forward pass of a transformer: of a decoder over the paged KV cache, or of an encoder.

Shape legend: T tokens of the step, E embedding size, A values of all query heads, N tokens with logits, V vocabulary,
S slots.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.operations.hidden_states import store_hidden
from scheduler_proc.computing.model.adapters import Adapters
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.embedding import Embedding, embedding_parameters
from scheduler_proc.computing.model.blocks.head import Head, head_parameters
from scheduler_proc.computing.model.blocks.layer import Layer, Stream, layer_parameters
from scheduler_proc.computing.model.blocks.layer_inputs import LayerInputs, input_parameters
from scheduler_proc.computing.model.blocks.mtp_inputs import mtp_parameters
from scheduler_proc.computing.model.blocks.norm import Norm, norm_parameters
from scheduler_proc.computing.model.blocks.pooler import DenseLayer, Pooler
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.model.position_biases import POSITION_BIAS, bias_parameters, spread_buckets
from scheduler_proc.computing.model.rope_tables import make_rope_tables
from scheduler_proc.computing.model.workspace import NEW_MEMORY, Activations
from scheduler_proc.computing.parallel import ALONE, ParallelGroup
from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.rows import StepRows

LayerKind = tuple[LayerDescription, tuple[str, ...]]
"""A description and the formats of the weights: layers of one kind compute the same on different weights."""

Memory = Sequence[Sequence[Any]]
"""By layer, what each of its mixers keeps of tokens: `Mixer` in `blocks/layer.py`."""

ComputeLayers = Callable[[Callable[[int], None], Sequence[int]], None]
"""Computes the layers with these indices, in order, with the given function for one layer."""


def model_parameters(model: ModelDescription) -> list[Parameter]:
    """Returns all parameters of the whole model, as declared by its blocks."""
    layers = (layer_parameters(f"layers.{index}", layer, model.hidden_size) for index, layer in enumerate(model.layers))
    return [
        *embedding_parameters(model),
        *input_parameters(model),
        *(parameter for layer in layers for parameter in layer),
        *norm_parameters("final_norm", model.final_norm),
        *head_parameters(model),
        *mtp_parameters(model),
        *bias_parameters(model),
        *(model.classifier.parameters(model.hidden_size) if model.classifier is not None else ()),
    ]


class Decoder(Protocol):
    """A model with its weights. With several ranks, `model` is this rank's part (`sharding.py`)."""

    model: ModelDescription
    parallel: ParallelGroup
    num_weight_bytes: int
    layer_kinds: list[LayerKind]
    pooler: Pooler | None
    """`None`: pooled hidden states are the model's vectors, and it has no classification head."""
    adapters: Adapters | None
    """`None`: rows have no adapters."""

    @property
    def activation_dtype(self) -> torch.dtype: ...

    def forward(
        self,
        step: StepInputs,
        memory: Memory,
        room: Activations = NEW_MEMORY,
        compute_middle: ComputeLayers | None = None,
        hidden_SE: Tensor | None = None,
    ) -> Tensor:
        """Returns what `logits` takes for `step.head_tokens`, [N, E], and stores what mixers keep of all tokens.

        `hidden_SE` has the final hidden states of tokens, if they are kept for a head of multi-token prediction.
        Results of operations, including the returned one, may be placed in `room`. `compute_middle`, if given, computes
        layers in the middle.
        """
        ...

    def logits(self, hidden_NE: Tensor, /, out_NV: Tensor | None = None, slots_N: Tensor | None = None) -> Tensor:
        """Returns the logits [N, V] of rows of what `forward` returned, possibly in `out_NV`.

        `slots_N`: the slots of the rows' adapters, needed if an adapter has a head of its own.
        """
        ...

    def token_logits(self, hidden_NE: Tensor, ids_NL: Tensor, /) -> Tensor | None:
        """Returns the logits of these tokens, float32 [N, L], exact where `logits` rounds them.

        `None` if only `logits` computes them.
        """
        ...


class DescribedDecoder:
    """The decoder of a description. It pops its weights from `weights`; `max_model_len` positions are supported.

    With several ranks, `model` and `weights` are this rank's (`sharding.py`). Embedding and head are those of `shared`,
    if given.
    """

    def __init__(
        self,
        model: ModelDescription,
        weights: Weights,
        max_model_len: int,
        parallel: ParallelGroup = ALONE,
        shared: "DescribedDecoder | None" = None,
        adapters: Adapters | None = None,
        dense: Sequence[DenseLayer] = (),
    ):
        self.model = model
        self.parallel = parallel
        self.num_weight_bytes = sum(weight.stored.nbytes for weight in weights.values())
        self.adapters = adapters
        self._final_norm = Norm("final_norm", model.final_norm, weights)
        dtype = self.activation_dtype
        self.embedding = Embedding(model, weights, parallel, dtype) if shared is None else shared.embedding
        self._layer_inputs = LayerInputs(model, weights) if model.layer_inputs_size else None
        device = self._final_norm.weight_E.device
        bias_HX = spread_buckets(pop_tensor(weights, POSITION_BIAS)) if model.num_buckets else None
        rope_tables = cache(partial(make_rope_tables, num_positions=max_model_len, device=device))
        context = BlockContext(parallel, rope_tables, bias_HX)
        self._layers: list[Layer] = []
        self.layer_kinds: list[LayerKind] = []
        for index, layer in enumerate(model.layers):
            names = [parameter.name for parameter in layer_parameters(f"layers.{index}", layer, model.hidden_size)]
            formats = tuple(weights[name].format.name for name in names if name in weights)
            self.layer_kinds.append((layer, formats))
            self._layers.append(Layer(index, layer, weights, context))
        self.pooler = Pooler(model.classifier, weights, dense, device) if model.classifier or dense else None
        self._head = Head(model, weights, self.embedding.tokens_VE, parallel) if shared is None else shared._head

    @property
    def activation_dtype(self) -> torch.dtype:
        return self._final_norm.weight_E.dtype

    def logits(self, hidden_NE: Tensor, out_NV: Tensor | None = None, slots_N: Tensor | None = None) -> Tensor:
        logits_NV = self._head(hidden_NE, out_NV)
        if self.adapters is not None and slots_N is not None:
            self.adapters.tables.score(hidden_NE, slots_N, logits_NV)
        return logits_NV

    def token_logits(self, hidden_NE: Tensor, ids_NL: Tensor) -> Tensor | None:
        has_own = self.adapters is not None and self.adapters.tables
        return None if has_own else self._head.token_logits(hidden_NE, ids_NL)

    def forward(
        self,
        step: StepInputs,
        memory: Memory,
        room: Activations = NEW_MEMORY,
        compute_middle: ComputeLayers | None = None,
        hidden_SE: Tensor | None = None,
    ) -> Tensor:
        """Returns the final hidden states of `step.head_tokens`, [N, E]; keeps those of all tokens in `hidden_SE`."""
        residual_TE = self.embedding(step, room.residual)
        slots_T = step.view(ADAPTERS)
        if self.adapters is not None and slots_T is not None:
            self.adapters.tables.embed(step, slots_T, residual_TE)
        hidden_TE = self.compute_layers(residual_TE, step, memory, room, compute_middle)
        if self.model.mtp is None:
            return hidden_TE
        assert hidden_SE is not None
        store_hidden(hidden_TE, step.slots, hidden_SE)
        return hidden_TE if step.all_go_to_head else hidden_TE[step.head_tokens]

    def compute_layers(
        self,
        residual_TE: Tensor,
        step: StepInputs,
        memory: Memory,
        room: Activations,
        compute_middle: ComputeLayers | None,
    ) -> Tensor:
        """Returns the final hidden states of `step.head_tokens`, or of all tokens if they are kept, [N, E].

        `compute_middle` gets the layers between the first one, the last one that stores anything, and the last one.
        After the one that stores, only the head's tokens are computed, if `step.head_rows` are known.
        """
        lora = None if self.adapters is None or step.view(ADAPTERS) is None else self.adapters.slots.linears
        rows = StepRows(step, lora=lora)
        attended_TA = room.attended
        if attended_TA is None:
            attended_TA = residual_TE.new_empty(len(residual_TE), self.model.attended_size)
        inputs = None if self._layer_inputs is None else self._layer_inputs(rows, residual_TE, room)
        stream = Stream(residual_TE, None, attended_TA, room, rows, inputs)
        last = len(self._layers) - 1
        keeps_all = self.model.mtp is not None
        narrow_at = last if step.head_rows is None or keeps_all else self.model.last_storing

        def compute(index: int) -> None:
            if index > narrow_at and not len(stream.residual):
                return
            is_narrow = index == narrow_at and not (keeps_all or step.all_go_to_head)
            self._layers[index].apply(stream, memory[index], is_narrow=is_narrow)
            if is_narrow and index < last:
                stream.rows, stream.attended = rows.at_head(), stream.attended[: len(stream.residual)]

        for first, end in ((0, narrow_at), (narrow_at, last), (last, last + 1)):
            middle = range(first + 1, end)
            if first < end:
                compute(first)
            if compute_middle is None or len(middle) < 2:
                for index in middle:
                    compute(index)
            else:
                compute_middle(compute, middle)
        return self._final_norm(stream.residual, stream.update, stream.room.normed)
