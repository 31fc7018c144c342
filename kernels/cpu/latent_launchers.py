"""Calls of the C kernels of latent attention, as `launchers.py` has those of other operations."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernels.arguments.latent_queries import LatentNorm, LatentQueries, LatentTokens, latent_size_of
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.cpu.addresses import address_of, addresses_of
from kernels.cpu.attention_launchers import has_kernel
from kernels.cpu.library import MAX_HEAD_DIM, Kernel

MAX_HEADS = 128
"""A tile has all heads of a token."""


def latent_decode(
    kernel: Kernel,
    queries: LatentQueries,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    scale: float,
    out_HRC: Tensor,
    *_work: Any,
) -> Any:
    lens = {"num_keys": address_of(num_keys_R)}
    return _attend_to_latents(kernel, queries, cache, page_tables_RP, scale, out_HRC, lens)


def latent_prefill(
    kernel: Kernel, queries: LatentQueries, cache: PagedKV, rows: PrefillRows, scale: float, out_HTC: Tensor
) -> Any:
    lens = {"query_lens": address_of(rows.query_lens), "context_lens": address_of(rows.context_lens)}
    return _attend_to_latents(kernel, queries, cache, rows.page_tables, scale, out_HTC, lens)


def _attend_to_latents(
    kernel: Kernel,
    queries: LatentQueries,
    cache: PagedKV,
    page_tables_RP: Tensor,
    scale: float,
    out_HTC: Tensor,
    lens: Mapping[str, int | None],
) -> Any:
    (plain_HTC, rotated_HTX, _), (num_heads, _, rank) = queries, out_HTC.shape
    if (
        not has_kernel(cache, out_HTC.dtype)
        or latent_size_of(cache, rotated_HTX.shape[2]) > MAX_HEAD_DIM
        or num_heads > MAX_HEADS
    ):
        return NotImplemented
    for part in (plain_HTC, rotated_HTX, out_HTC):
        assert part.stride()[1:] == (part.shape[2], 1)
    arguments = kernel.arguments(
        query=plain_HTC.data_ptr(),
        rotated=rotated_HTX.data_ptr(),
        query_stride=plain_HTC.stride(0),
        rotated_stride=rotated_HTX.stride(0),
        out_stride=out_HTC.stride(0),
        latents=address_of(cache.keys),
        scales=address_of(cache.key_scales),
        page_tables=page_tables_RP.data_ptr(),
        table_stride=page_tables_RP.stride(0),
        out=out_HTC.data_ptr(),
        num_rows=len(page_tables_RP),
        num_heads=num_heads,
        rank=rank,
        rotated_dim=rotated_HTX.shape[2],
        page_size=cache.page_size,
        scale=scale,
        is_float16=cache.keys.dtype == torch.float16,
        **lens,
    )
    return kernel.run(arguments)


def store_latents(
    kernel: Kernel, tokens: LatentTokens, cache: PagedKV, norm: LatentNorm, queries: LatentQueries
) -> Any:
    query_THD, latent_TL, *places = tokens
    if not has_kernel(cache, query_THD.dtype):
        return NotImplemented
    (plain_HTN, rotated_HTX, ends_H), (cos_MX, sin_MX, query_row) = queries, norm.tables
    addresses = addresses_of(query_THD, latent_TL, norm.weight, cos_MX, sin_MX, norm.growth, *places)
    addresses += addresses_of(cache.keys, cache.key_scales, plain_HTN, rotated_HTX, ends_H)
    sizes = *query_THD.shape[:2], plain_HTN.shape[2], rotated_HTX.shape[2], len(norm.weight), query_row
    return kernel.run(kernel.arguments(*addresses, *sizes, cache.keys.dtype == torch.float16, norm.eps))


def join_heads(kernel: Kernel, x_HTV: Tensor, out_TA: Tensor | None) -> Tensor:
    num_heads, num_tokens, size = x_HTV.shape
    out_TA = x_HTV.new_empty(num_tokens, num_heads * size) if out_TA is None else out_TA
    kernel.run(kernel.arguments(*addresses_of(x_HTV, out_TA), num_tokens, num_heads, size))
    return out_TA
