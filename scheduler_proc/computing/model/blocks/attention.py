"""Attention over the paged KV cache.

Shape legend: T tokens of the step, E embedding size, H query heads, G key/value heads, A = H + 2 G, D head dimension.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import HeadNorms, PrefillRows
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from kernels.operations.rms_norm import rms_norm
from kernels.operations.rotate_store import rotate_store
from kernels.operations.sigmoid_gate import sigmoid_gate
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.blocks.attention_parts import pop_head_norms, pop_options
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear, pop_row_parallel
from scheduler_proc.computing.model.workspace import LayerRows, fit
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.step.features.axes import AXES
from scheduler_proc.computing.step.features.last_keys import LAST_KEYS
from scheduler_proc.computing.step.features.windows import windowed
from scheduler_proc.computing.step.inputs import AttentionKind, StepInputs


class Block:
    @staticmethod
    def open_cache(tensors: Sequence[Tensor], page_size: int) -> PagedKV:
        """Returns the cache whose tensors are K, V and, of codes, their scales."""
        keys, values, *scales = tensors
        return PagedKV(keys, values, page_size, *scales)

    def __init__(self, layer: str, attention: AttentionDescription, weights: Weights, context: BlockContext):
        self._kind = attention.kind
        self._head_dim, self._qkv_size = attention.head_dim, attention.qkv_size
        self._options = pop_options(layer, attention, weights, context)
        self._qkv = pop_linear(weights, f"{layer}.qkv")
        self._gate = pop_linear(weights, f"{layer}.attention_gate") if attention.has_gate else None
        self._stores = attention.kv_layer is None
        norms = pop_head_norms(layer, attention, weights)
        self._whole_norms, self._head_norms = (norms, None) if attention.norms_whole_qk else (None, norms)
        self._parallel = context.parallel
        self._out = pop_row_parallel(weights, f"{layer}.attention_out", context.parallel)
        self._rope_tables = attention.rope and context.rope_tables(attention.rope, attention.head_dim)
        self._has_axes = attention.has_axes

    def __call__(self, normed_TE: Tensor, layer_rows: LayerRows, memory: Any) -> Tensor:
        """Returns the update of the residual stream, [T, E]; first stores K and V, unless they are another layer's."""
        rows, room, attended, narrow = layer_rows
        step = rows.step if self._options.window is None else windowed(rows.step)
        heads_TA = self._qkv(normed_TE, rows, fit(room.heads, self._qkv_size))
        if self._whole_norms is not None:
            _norm_whole(heads_TA, self._whole_norms, self._parallel)
        heads_TAD = heads_TA.view(len(heads_TA), -1, self._head_dim)
        attended_TA = self._attend(heads_TAD, step, memory, attended, is_narrow=narrow is not None)
        out_rows, out_room = narrow or (rows, room)
        if self._gate is not None:
            gated_TE = normed_TE if narrow is None else normed_TE[step.head_tokens]
            gate_TA = self._gate(gated_TE, out_rows, fit(out_room.inner, attended_TA.shape[1]))
            attended_TA = sigmoid_gate(attended_TA, gate_TA)
        return self._out(attended_TA, out_rows, out_room.update)

    def _attend(
        self, heads_TAD: Tensor, step: StepInputs, memory: PagedKV, attended: Tensor, *, is_narrow: bool
    ) -> Tensor:
        """Returns the outputs of attention, [T, H * D], or those of `step.head_tokens`."""
        own = memory if self._stores else None
        tables, positions = self._rope_tables, step.positions
        if self._has_axes and (axes := step.view(AXES)) is not None:
            tables, positions = axes.tables, axes.rows
        query_THD = rotate_store(heads_TAD, own, tables, positions, step.slots, self._head_norms)
        out_THD = room_like(query_THD, attended)
        assert self._kind is not None
        return attend(query_THD, step, memory, self._kind, self._options, out_THD, is_narrow=is_narrow)


def room_like(query_THD: Tensor, attended: Tensor) -> Tensor:
    """Returns contiguous room for outputs of this shape at the beginning of `attended`."""
    room_TA = fit(attended, query_THD.shape[1] * query_THD.shape[2])
    assert room_TA is not None
    return room_TA.view(query_THD.shape)


def attend(
    query_THD: Tensor,
    step: StepInputs,
    cache: PagedKV,
    kind: AttentionKind,
    options: AttentionOptions,
    out_THD: Tensor,
    *,
    is_narrow: bool = False,
) -> Tensor:
    """Returns the attention's output, [T, H * D], which may be a view of `out_THD`.

    With `is_narrow` it has only the rows of `step.head_tokens`.
    """
    num_tokens, num_decode = len(query_THD), step.num_decode_rows
    tiles = None if step.prefill_tiles is None else step.prefill_tiles[kind]
    lens, is_long = (step.prefill_query_lens, step.prefill_context_lens), kind in step.long_kinds
    rows = PrefillRows(step.prefill_page_tables, *lens, tiles, is_long=is_long)
    requested, last_T = step.head_tokens if is_narrow else None, step.view(LAST_KEYS) if options.sees_spans else None
    if is_narrow and step.head_rows is not None:
        query_THD, rows, requested = query_THD[step.head_tokens], step.head_rows, None
        last_T = None if last_T is None else last_T[step.head_tokens]
        num_tokens = len(query_THD)
        out_THD = out_THD[:num_tokens]
    has_prompts = num_decode < num_tokens
    if num_decode:
        query, out = (x[:num_decode] if has_prompts else x for x in (query_THD, out_THD))
        work = None if step.decode_works is None else step.decode_works[kind]
        paged_decode(query, cache, step.decode_page_tables, step.decode_num_keys, options, out, work)
    if has_prompts:
        if last_T is not None:
            rows = replace(rows, last_keys=last_T[num_decode:])
        paged_prefill(query_THD[num_decode:], cache, rows, options, out_THD[num_decode:])
    return select_tokens(out_THD, requested)


def _norm_whole(heads_TA: Tensor, norms: HeadNorms, parallel: ParallelGroup) -> None:
    """Normalizes all query heads together, and all key heads together, also those of other ranks."""
    begin = 0
    for weight_N in (norms.query_weight, norms.key_weight):
        part_TN = heads_TA[:, begin : begin + len(weight_N)]
        begin += len(weight_N)
        if parallel.size == 1:
            normed_TN = rms_norm(part_TN, weight_N, norms.eps, None, part_TN)
        else:  # all ranks have as many heads
            wide_TN = part_TN.float()
            mean_T1 = parallel.all_reduce(wide_TN.square().mean(-1, keepdim=True)) / parallel.size
            normed_TN = (wide_TN * torch.rsqrt(mean_T1 + norms.eps)).to(part_TN.dtype) * weight_N
        if normed_TN is not part_TN:
            part_TN.copy_(normed_TN)


def select_tokens(attended_THD: Tensor, tokens: Tensor | None) -> Tensor:
    """Returns the output of these tokens, or of all if it is None, [T, H * D]."""
    found_THD = attended_THD if tokens is None else attended_THD[tokens]
    return found_THD.view(len(found_THD), found_THD.shape[1] * found_THD.shape[2])
