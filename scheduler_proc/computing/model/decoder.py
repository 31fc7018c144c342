"""The forward pass of a transformer: of a decoder over the paged KV cache, or of an encoder.

Shape legend: T tokens of the step, E embedding size, N tokens with logits, V vocabulary, S slots.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels.operations.hidden_states import store_hidden
from kernels.operations.rescale import rescale
from scheduler_proc.computing.model.adapters import Adapters
from scheduler_proc.computing.model.blocks.embedding import TOKENS
from scheduler_proc.computing.model.blocks.head import Head
from scheduler_proc.computing.model.blocks.norm import Norm
from scheduler_proc.computing.model.blocks.pooler import DenseLayer, Pooler
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.span_rows import SpanRows
from scheduler_proc.computing.model.stages import (
    FINAL_NORM,
    ComputeLayers,
    EmbeddingStage,
    HeadStage,
    LayerKind,
    LayerStage,
    Memory,
    begin_stream,
)
from scheduler_proc.computing.model.workspace import NEW_MEMORY, Activations
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.pipeline import WHOLE, Pipeline
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.rows import StepRows


class Decoder(Protocol):
    """A model with its weights. With several ranks, `model` is this rank's part (`sharding.py`).

    A subclass overrides what it has; by default there is only the output of `logits`.
    """

    model: ModelDescription
    parallel: ParallelGroup
    pipeline: Pipeline
    num_weight_bytes: int
    layer_kinds: list[LayerKind]
    activation_dtype: torch.dtype
    pooler: Pooler | None = None
    """`None`: pooled hidden states are the model's vectors, and it has no classification head."""
    adapters: Adapters | None = None
    """`None`: rows have no adapters."""
    span_rows: SpanRows | None = None
    """`None`: prompts have no spans: the model adds positions to its embeddings, or several ranks compute it."""

    def forward(
        self,
        step: StepInputs,
        memory: Memory,
        room: Activations = NEW_MEMORY,
        compute_middle: ComputeLayers | None = None,
        hidden_SE: Tensor | None = None,
    ) -> Tensor:
        """Returns what `logits` takes for `step.head_tokens`, [N, E], and stores what mixers keep of all tokens.

        A stage that is not the last one returns the residual stream of all tokens, [T, E]. One that is not the first
        finds it in `room.residual`, and further inputs of layers in `room.layer_inputs`.

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

    def best_tokens(self, hidden_NE: Tensor, /) -> Tensor | None:
        """Returns the likeliest token of each row, int32 [N], without its logits; `None` if no kernel does that."""

    def token_logits(self, hidden_NE: Tensor, ids_NL: Tensor, /) -> Tensor | None:
        """Returns the logits of these tokens, float32 [N, L], exact where `logits` rounds them.

        `None` if only `logits` computes them.
        """


class DescribedDecoder(Decoder):
    """The stages of a description. It pops its weights from `weights`; `max_model_len` positions are supported.

    With several ranks, `model` and `weights` are this rank's (`sharding.py`): it has the embedding or the head only if
    it has the first or the last layer, and the embedding also for a head of multi-token prediction.
    """

    def __init__(
        self,
        model: ModelDescription,
        weights: Weights,
        max_model_len: int,
        pipeline: Pipeline = WHOLE,
        adapters: Adapters | None = None,
        dense: Sequence[DenseLayer] = (),
        dtype: torch.dtype | None = None,
    ):
        self.model, self.pipeline, self.adapters = model, pipeline, adapters
        self.parallel = parallel = pipeline.within
        self.num_weight_bytes = sum(weight.stored.nbytes for weight in weights.values())
        norm = Norm(FINAL_NORM, model.final_norm, weights) if model.has_end else None
        if dtype is None:
            assert norm is not None
            dtype = norm.weight_E.dtype
        self.activation_dtype = dtype
        self.begins, has_drafts = model.held.start == 0, model.has_end and model.mtp is not None
        self.embedding = None
        if self.begins or has_drafts:
            self.embedding = EmbeddingStage(model, weights, parallel, dtype, adapters)
        is_whole = self.begins and model.has_end
        self.span_rows = self.embedding.span_rows if self.embedding is not None and is_whole else None
        self.layers = LayerStage(model, model.held, weights, max_model_len, parallel)
        self.layer_kinds = self.layers.kinds
        self.head = None
        if norm is None:
            return
        if model.classifier or dense:
            self.pooler = Pooler(model.classifier, weights, dense, norm.weight_E.device)
        tokens_VE = weights.pop(TOKENS, None) if self.embedding is None else self.embedding.block.tokens_VE
        head = self.head = HeadStage(norm, Head(model, weights, tokens_VE, parallel), adapters)
        self.logits, self.token_logits, self.best_tokens = head.logits, head.token_logits, head.best_tokens

    def forward(
        self,
        step: StepInputs,
        memory: Memory,
        room: Activations = NEW_MEMORY,
        compute_middle: ComputeLayers | None = None,
        hidden_SE: Tensor | None = None,
    ) -> Tensor:
        """Returns the final hidden states of `step.head_tokens`, [N, E]; keeps those of all tokens in `hidden_SE`."""
        if self.begins:
            assert self.embedding is not None
            stream = self.embedding.begin(step, room)
        else:
            assert room.residual is not None
            stream = begin_stream(self.model, room.residual, StepRows(step), room, room.layer_inputs)
        self.layers.apply(stream, memory, compute_middle)
        if self.head is None:
            return stream.residual if stream.update is None else rescale(stream.residual, added_TE=stream.update)
        hidden_TE = self.head.end(stream)
        if self.model.mtp is None:
            return hidden_TE
        assert hidden_SE is not None
        store_hidden(hidden_TE, step.slots, hidden_SE)
        return hidden_TE if step.all_go_to_head else hidden_TE[step.head_tokens]
