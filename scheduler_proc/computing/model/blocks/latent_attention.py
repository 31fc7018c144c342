"""Multi-head latent attention over the paged cache of latents: see `LatentAttentionDescription`.

Queries are multiplied by what makes keys of latents, and outputs by what makes values of them, in prompts as in decode
rows: so a token has the same bits however it is computed (decision 0143).

Shape legend: T tokens of the step, E embedding size, H heads, N and X values of a query head that are not, and are
rotated, C values of a latent, V values of a head.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from kernels.arguments.latent_queries import LatentNorm, LatentQueries, LatentTokens
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.routes import Routes
from kernels.arguments.rows import PrefillRows
from kernels.operations.expert_linear import ExpertLinear
from kernels.operations.join_heads import join_heads
from kernels.operations.latent_attention import latent_decode, latent_prefill
from kernels.operations.rms_norm import rms_norm
from kernels.operations.store_latents import store_latents
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import (
    Weights,
    pop_experts,
    pop_linear,
    pop_row_parallel,
    pop_tensor,
)
from scheduler_proc.computing.model.latent_attention_description import LatentAttentionDescription
from scheduler_proc.computing.model.workspace import Activations, LayerRows, fit
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.rows import StepRows


class Block:
    @staticmethod
    def open_cache(tensors: Sequence[Tensor], page_size: int) -> PagedKV:
        """Returns the cache whose keys and values are the latents."""
        latents, *scales = tensors
        return PagedKV(latents, latents, page_size, *scales, *scales)

    def __init__(self, layer: str, attention: LatentAttentionDescription, weights: Weights, context: BlockContext):
        self._sizes, self._kind = attention, attention.kind
        self._query_latent = None
        if attention.query_rank is not None:
            self._query_latent = pop_linear(weights, f"{layer}.query_latent")
            self._query_norm = pop_tensor(weights, f"{layer}.query_norm.weight")
        self._query = pop_linear(weights, f"{layer}.query")
        self._latent = pop_linear(weights, f"{layer}.latent")
        tables, rope = context.rope_tables(attention.rope, attention.rotated_dim), attention.rope
        growth_M = None
        if rope.query_growth:
            factors = (tables.cosines[tables.query_row :, 0], tables.sines[tables.query_row :, 0])
            growth_M = torch.hypot(*factors) / rope.attention_factor
        norm_weight = pop_tensor(weights, f"{layer}.latent_norm.weight")
        self._norm = LatentNorm(norm_weight, attention.norm_eps, tables, growth_M)
        self._keys = pop_experts(weights, f"{layer}.latent_keys")
        self._values = pop_experts(weights, f"{layer}.latent_values")
        self._out = pop_row_parallel(weights, f"{layer}.attention_out", context.parallel)

    def __call__(self, normed_TE: Tensor, layer_rows: LayerRows, memory: PagedKV) -> Tensor:
        """Returns the update of the residual stream, [T, E]; first stores the latents."""
        (rows, room, attended, narrow), sizes = layer_rows, self._sizes
        step, queries = rows.step, self._store(normed_TE, rows, room, memory)
        tiles = None if step.prefill_tiles is None else step.prefill_tiles[self._kind]
        prefill = PrefillRows(step.prefill_page_tables, step.prefill_query_lens, step.prefill_context_lens, tiles)
        later = None if narrow is None else step.head_tokens
        out_rows, out_room = narrow or (rows, replace(room, attended=attended))
        if later is not None and step.head_rows is not None:
            queries, prefill, room, later = queries.of(later).with_ends(), step.head_rows, out_room, None
        if not queries.plain.shape[1]:
            return normed_TE[:0]  # the last layer of a step of prompt chunks that end no prompt
        attended_HTC = self._attend(queries, step, room, memory, prefill)
        if later is not None:
            attended_HTC, queries = attended_HTC[:, later].contiguous(), queries.of(later).with_ends()
        value_HTV = _multiply_heads(self._values, attended_HTC, queries.ends, sizes.value_dim, out_room.gated)
        joined_TA = join_heads(value_HTV, fit(out_room.attended, sizes.out_size))
        return self._out(joined_TA, out_rows, out_room.update)

    def _store(self, normed_TE: Tensor, rows: StepRows, room: Activations, memory: PagedKV) -> LatentQueries:
        """Returns the queries; stores the latents."""
        sizes, num_tokens, query_TE = self._sizes, len(normed_TE), normed_TE
        if self._query_latent is not None:
            query_TE = self._query_latent(normed_TE, rows, fit(room.inner, sizes.query_rank or 0))
            query_TE = rms_norm(query_TE, self._query_norm, sizes.norm_eps, None, query_TE)
        query_TA = self._query(query_TE, rows, fit(room.heads, sizes.query_size))
        latent_TL = self._latent(normed_TE, rows, fit(room.inner, sizes.latent_size))
        heads = sizes.num_heads, num_tokens
        both_HTD = _take(room.gated, query_TA, *heads, sizes.plain_dim + sizes.rotated_dim).view(-1)
        plain, rotated = both_HTD.split([num_tokens * sizes.num_heads * size for size in sizes.query_parts])
        ends_H = query_TA.new_empty(sizes.num_heads, dtype=torch.int32)
        if room.routes is not None:
            ends_H = room.routes.view(-1)[: sizes.num_heads]
        queries = LatentQueries(plain.view(*heads, -1), rotated.view(*heads, -1), ends_H)
        step, query_THD = rows.step, query_TA.view(num_tokens, sizes.num_heads, -1)
        tokens = LatentTokens(query_THD, latent_TL, step.positions, step.slots)
        store_latents(tokens, memory, self._norm, queries)
        return queries

    def _attend(
        self, queries: LatentQueries, step: StepInputs, room: Activations, memory: PagedKV, prefill: PrefillRows
    ) -> Tensor:
        """Returns the sums of latents, [H, T, C]."""
        sizes, num_decode = self._sizes, step.num_decode_rows
        absorbed_HTC = _multiply_heads(self._keys, queries.plain, queries.ends, sizes.rank, room.heads)
        queries = queries._replace(plain=absorbed_HTC)
        out_HTC = _take(room.copies, absorbed_HTC, *absorbed_HTC.shape)
        if num_decode:
            latent_decode(
                queries.of(slice(num_decode)),
                memory,
                step.decode_page_tables,
                step.decode_num_keys,
                sizes.scale,
                out_HTC[:, :num_decode],
                None if step.decode_works is None else step.decode_works[self._kind],
            )
        if num_decode < out_HTC.shape[1]:
            latent_prefill(queries.of(slice(num_decode, None)), memory, prefill, sizes.scale, out_HTC[:, num_decode:])
        return out_HTC


def _multiply_heads(linear: ExpertLinear, x_HTI: Tensor, ends_H: Tensor, size: int, room: Tensor | None) -> Tensor:
    """Returns the products of each head, [H, T, size]: heads are to `linear` what experts are to others."""
    num_heads, num_tokens, _ = x_HTI.shape
    out = None if room is None else _take(room, x_HTI, num_heads * num_tokens, size)
    product = linear(x_HTI.reshape(num_heads * num_tokens, -1), Routes(ends_H, ends_H, ends_H, ends_H), out)
    return product.view(num_heads, num_tokens, size)


def _take(room: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """Returns contiguous memory of this shape, in `room` if there is some."""
    return like.new_empty(shape) if room is None else room.view(-1)[: prod(shape)].view(shape)
