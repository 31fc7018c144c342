"""Memory for the results of a step's operations, allocated once and used by all steps.

Shape legend: T tokens, E embedding size, H query heads, A = H + 2 G heads with those of G keys and G values, D head
dimension, F MLP size, K chosen experts of a token, N rows, V vocabulary. H * D, A * D and F are the largest of all
layers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cpu.huge_pages import empty_huge
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription
from scheduler_proc.computing.step.rows import StepRows


@dataclass(frozen=True)
class Activations:
    """Room for the results of a layer's operations, the same for all layers; `None`: they allocate new memory."""

    residual: Tensor | None = None
    """[T, E]"""
    normed: Tensor | None = None
    """[T, E]"""
    heads: Tensor | None = None
    """[T, A * D], or what the first linear of a recurrent block computes."""
    attended: Tensor | None = None
    """[T, H * D], or what the last linear of a recurrent block reads."""
    update: Tensor | None = None
    """[T, E]"""
    inner: Tensor | None = None
    """[T, F], or [T, 2 F] for a gated MLP; `None` if there is no MLP."""
    gated: Tensor | None = None
    """[T, F]; `None` if no MLP is gated."""
    second_update: Tensor | None = None
    """[T, E]; `None` if no layer has experts next to its MLP, or several mixers."""
    layer_inputs: Tensor | None = None
    """[T, values of all layers]; `None` if layers have no inputs of their own."""
    copies: Tensor | None = None
    """[T, K * E]: the inputs and outputs of the experts that tokens go to, K of a token; `None` without experts."""
    routes: Tensor | None = None
    """int32 [T, words]: the logits of the router, and routes."""

    def take(self, num_tokens: int) -> "Activations":
        """Returns the room of the first tokens; `NEW_MEMORY` if it is too small."""
        if self.residual is None or num_tokens > len(self.residual):
            return NEW_MEMORY
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return Activations(**{name: part if part is None else part[:num_tokens] for name, part in parts.items()})


NEW_MEMORY = Activations()


class LayerRows(NamedTuple):
    """The rows of a step as mixers get them, with memory for their results.

    With `narrow`, the update of the residual stream covers only those rows, and is in that room.
    """

    rows: StepRows
    room: Activations
    attended: Tensor
    """[T, values of all query heads]: buffer for what the block's output linear reads; the block overwrites it."""
    narrow: tuple[StepRows, Activations] | None


def fit(room: Tensor | None, size: int) -> Tensor | None:
    """Returns contiguous room [T, size], which may be smaller than the room of the largest layer."""
    if room is None or room.shape[1] == size:
        return room
    return room.view(-1)[: len(room) * size].view(len(room), size)


def room_sizes(layers: Sequence[LayerDescription], hidden_size: int) -> Counter[str]:
    """Returns the values per token that these layers use of `Activations`, by the names of its fields."""
    sizes = Counter[str](dict.fromkeys(("residual", "normed", "update"), hidden_size))
    for layer in layers:
        sizes |= Counter(attended=max((mixer.out_size for mixer in layer.mixers), default=0))
        for block in layer.blocks:
            sizes |= Counter(block.room_sizes(hidden_size))
        if len(layer.mixers) > 1:
            sizes |= Counter(second_update=hidden_size)
    return sizes


def make_activations(sizes: Mapping[str, int], dtype: torch.dtype, max_tokens: int) -> Activations:
    """Returns room on the CPU for `max_tokens` tokens. The operating system provides the memory as it is written."""
    dtypes = {"routes": torch.int32}
    return Activations(
        **{name: empty_huge((max_tokens, size), dtypes.get(name, dtype)) for name, size in sizes.items()}
    )


class Workspace:
    """Room for steps of up to `max_tokens` tokens, and logits of up to `max_rows` rows if there is a head, on the CPU.

    The operating system provides the memory as it is written, so unused memory costs nothing.
    """

    def __init__(self, model: ModelDescription, dtype: torch.dtype, max_tokens: int, max_rows: int):
        sizes = room_sizes(model.layers, model.hidden_size)
        if num_inputs := model.layer_inputs_size:
            sizes |= Counter(layer_inputs=num_inputs, inner=num_inputs, gated=num_inputs)
        self._activations = make_activations(sizes, dtype, max_tokens)
        self._logits_NV = empty_huge((max_rows if model.has_end else 0, model.vocab_size), dtype)

    @property
    def num_bytes(self) -> int:
        parts = (getattr(self._activations, field.name) for field in fields(self._activations))
        return sum(part.nbytes for part in (*parts, self._logits_NV) if part is not None)

    def activations(self, num_tokens: int) -> Activations:
        """Returns room for a step of `num_tokens` tokens."""
        return self._activations.take(num_tokens)

    def logits(self, num_rows: int) -> Tensor | None:
        """Returns room for the logits of `num_rows` rows, `None` if it is too small."""
        return self._logits_NV[:num_rows] if num_rows <= len(self._logits_NV) else None
