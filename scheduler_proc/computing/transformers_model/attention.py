"""The attention that transformers' models call here: each forward pass chooses what computes it.

Shape legend: T tokens, H query heads, G key/value heads, D values per head, A = H + 2 G.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.operations.rotate_store import rotate_store
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.blocks.attention import attend
from scheduler_proc.computing.step.features.windows import windowed
from scheduler_proc.computing.step.inputs import StepInputs

NAME = "sluice"
"""The name in transformers. No mask is registered under it: transformers then makes none."""


Attention = Callable[[nn.Module, Tensor, Tensor, Tensor, Any, Any], Tensor]
"""Computes a call of attention in a forward pass over one sequence: takes the module that calls it, Q [1, H, T, D],
K and V [1, G, T, D], the mask and the other arguments by name; returns [1, T, H, D]. V may have another D."""

_chosen: ContextVar[Attention] = ContextVar("attention")


def call_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **arguments: Any
) -> tuple[Tensor, None]:
    """Is what transformers' attention modules call."""
    return _chosen.get()(module, query, key, value, attention_mask, arguments), None


AttentionInterface.register(NAME, call_attention)


@contextmanager
def attention_by(attention: Attention) -> Iterator[None]:
    """Makes `attention` compute all calls of the block."""
    token = _chosen.set(attention)
    try:
        yield
    finally:
        _chosen.reset(token)


class PagedAttention:
    """The attention of one step. The nth call is that of `attentions[n]` and has the nth cache."""

    def __init__(self, step: StepInputs, attentions: Sequence[AttentionDescription], caches: Sequence[PagedKV]):
        self._step = step
        self._layers = zip(attentions, caches, strict=True)

    def __call__(
        self, module: nn.Module, query_1HTD: Tensor, key_1GTD: Tensor, value_1GTD: Tensor, mask: Any, arguments: Any
    ) -> Tensor:
        attention, cache = next(self._layers)
        options = read_options(query_1HTD, arguments, attention.window)
        parts = [_fit(part[0].transpose(0, 1), attention.head_dim) for part in (query_1HTD, key_1GTD, value_1GTD)]
        heads_TAD, step = torch.cat(parts, dim=1), self._step if attention.window is None else windowed(self._step)
        query_THD = rotate_store(heads_TAD, cache, None, step.positions, step.slots)
        out_THD = torch.empty(query_THD.shape, dtype=query_THD.dtype, device=query_THD.device)
        assert attention.kind is not None
        attend(query_THD, step, cache, attention.kind, options, out_THD)
        return out_THD[None, :, :, : value_1GTD.shape[3]]


def _fit(heads: Tensor, head_dim: int) -> Tensor:
    """Returns the heads with zeros up to `head_dim` values: they change no product, and those of V are cut off."""
    return heads if heads.shape[-1] == head_dim else functional.pad(heads, (0, head_dim - heads.shape[-1]))


def read_options(query_1HTD: Tensor, arguments: Any, window: int | None) -> AttentionOptions:
    scale, sinks = arguments.get("scaling"), arguments.get("s_aux")
    return AttentionOptions(
        query_1HTD.shape[3] ** -0.5 if scale is None else scale,
        window,
        arguments.get("softcap"),
        None if sinks is None else sinks.float(),
    )
