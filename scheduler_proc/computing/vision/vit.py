"""A vision transformer with its weights: hidden states of patches, for several views at a time.

Shape legend: V views, T patches of all views, E embedding size, P values of a patch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.layer import Layer, Stream
from scheduler_proc.computing.model.blocks.norm import Norm
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear, pop_tensor
from scheduler_proc.computing.model.workspace import NEW_MEMORY, Activations, make_activations, room_sizes
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.vision.description import (
    CLASS_TOKEN,
    PATCHES,
    POSITIONS,
    POST_NORM,
    PRE_NORM,
    ProjectorDescription,
    TowerDescription,
)


def whole_rows(lens: Tensor, positions: Tensor | None = None) -> StepRows:
    """Returns the rows of a step in which each view attends to itself. `lens`: int32 [V], tokens of each.

    `positions`: int32 [T], the rows of the rope tables, for attention that rotates.
    """
    none = lens.new_empty(0)
    columns: dict[str, Any] = dict.fromkeys(
        ("token_ids", "future_token_indices", "decode_page_tables", "decode_num_keys", "prefill_page_tables"), none
    )
    long = none.long()
    step = StepInputs(
        num_decode_rows=0,
        positions=none if positions is None else positions,
        slots=long if positions is None else torch.zeros_like(positions, dtype=torch.int64),
        prefill_query_lens=lens,
        prefill_context_lens=torch.zeros_like(lens),
        head_tokens=long,
        **columns,
    )
    return StepRows(step)


HOST = torch.device("cpu")


class Projector:
    """See `ProjectorDescription`."""

    def __init__(self, description: ProjectorDescription, weights: Weights):
        self._norm = Norm(f"{description.name}.norm", description.norm, weights) if description.norm else None
        *firsts, last = description.linears
        self._linears = [pop_linear(weights, name, description.activation) for name in firsts]
        self._linears.append(pop_linear(weights, last))

    def __call__(self, x_TI: Tensor, rows: StepRows) -> Tensor:
        if self._norm is not None:
            x_TI = self._norm(x_TI, None, None)
        for linear in self._linears:
            x_TI = linear(x_TI, rows)
        return x_TI


class Vit:
    """The patches and layers of a description; pops its weights. `context`: what its blocks are made with."""

    def __init__(self, tower: TowerDescription, weights: Weights, context: BlockContext):
        norm = weights["layers.0.attention_norm.weight"].stored
        self.dtype, self.device = norm.dtype, norm.device
        self._kept_after = tower.kept_after
        self._room_sizes = room_sizes(tower.layers, tower.hidden_size)
        self._patches = pop_linear(weights, PATCHES)
        self.positions = pop_tensor(weights, POSITIONS) if tower.num_positions else None
        """[table, E]"""
        self.class_token = pop_tensor(weights, CLASS_TOKEN) if tower.has_class_token else None
        self._pre_norm = Norm(PRE_NORM, tower.pre_norm, weights) if tower.pre_norm else None
        self._post_norm = Norm(POST_NORM, tower.post_norm, weights) if tower.post_norm else None
        self._layers = [Layer(index, layer, weights, context) for index, layer in enumerate(tower.layers)]
        self._nothing = [[None] * len(layer.mixers) for layer in tower.layers]
        self._room = NEW_MEMORY

    def embed(self, patches_TP: Tensor, rows: StepRows) -> Tensor:
        """Returns the embeddings of patches, [T, E], without positions."""
        return self._patches(patches_TP.to(self.dtype), rows)

    def forward(self, embedded_TE: Tensor, rows_of_layers: Sequence[StepRows]) -> list[Tensor]:
        """Returns the hidden states [T, E] that `TowerDescription.kept_after` asks for. Overwrites the embeddings.

        `rows_of_layers`: the rows of each layer's attention.
        """
        room = self._take_room(len(embedded_TE))
        if self._pre_norm is not None:
            embedded_TE = self._pre_norm(embedded_TE, None, None)
        attended = room.attended
        if attended is None:
            attended = embedded_TE.new_empty(len(embedded_TE), self._room_sizes["attended"])
        stream = Stream(embedded_TE, None, attended, room, rows_of_layers[0])
        kept: list[Tensor] = []
        for number, (layer, rows, nothing) in enumerate(
            zip(self._layers, rows_of_layers, self._nothing, strict=True), start=1
        ):
            stream.rows = rows
            layer.apply(stream, nothing, is_narrow=False)
            if number in self._kept_after:
                kept.append(self._read(stream, is_last=number == len(self._layers)))
        return kept

    def _read(self, stream: Stream, *, is_last: bool) -> Tensor:
        """Returns the stream's hidden states in memory of their own."""
        if is_last and self._post_norm is not None:
            return self._post_norm(stream.residual, stream.update, None)
        return stream.residual.clone() if stream.update is None else stream.residual + stream.update

    def _take_room(self, num_tokens: int) -> Activations:
        """Returns room for the results of layers, which is kept for the next call."""
        if self.device != HOST:  # activations are in host memory
            return NEW_MEMORY
        if self._room.residual is None or len(self._room.residual) < num_tokens:
            self._room = NEW_MEMORY  # freed before its successor is allocated
            self._room = make_activations(self._room_sizes, self.dtype, num_tokens)
        return self._room.take(num_tokens)
