"""Attention to latents: all heads attend to the same ones, of which a part is also the values.

DeepSeek-V2 (arXiv:2405.04434, section 2.1), with the linears of keys and values taken into the queries and the outputs.

Shape legend: H heads, T tokens, R rows, C values of a latent that are values, too, X rotated ones, P pages a row.
"""

import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.latent_queries import LatentQueries, latent_size_of
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.dispatch import call
from kernels.operations.paged_decode import paged_decode_reference
from kernels.operations.paged_prefill import paged_prefill_reference
from kernels.plans.decode_work import DecodeWork


def latent_decode(
    queries: LatentQueries,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    scale: float,
    out_HRC: Tensor,
    work: DecodeWork | None = None,
) -> None:
    """Sets `out_HRC` to softmax(scale * q kᵀ) c of each row over its first tokens; the rest is as in `paged_decode`."""
    _check(queries, cache, out_HRC)
    assert page_tables_RP.shape[0] == num_keys_R.shape[0] == out_HRC.shape[1]
    assert page_tables_RP.dtype == num_keys_R.dtype == torch.int32
    arguments = queries, cache, page_tables_RP, num_keys_R, scale, out_HRC, work
    call("latent_decode", out_HRC, latent_decode_reference, *arguments)


def latent_decode_reference(
    queries: LatentQueries,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    scale: float,
    out_HRC: Tensor,
    _work: DecodeWork | None = None,
) -> None:
    query_RHD = _join(queries)
    out_RHD = torch.empty_like(query_RHD)
    cache = _without_codes(queries, cache)
    paged_decode_reference(query_RHD, cache, page_tables_RP, num_keys_R, AttentionOptions(scale), out_RHD)
    out_HRC.copy_(out_RHD[:, :, : out_HRC.shape[2]].transpose(0, 1))


def latent_prefill(queries: LatentQueries, cache: PagedKV, rows: PrefillRows, scale: float, out_HTC: Tensor) -> None:
    """Sets `out_HTC` to that of each token over its row's tokens up to its own; the rest is as in `paged_prefill`."""
    _check(queries, cache, out_HTC)
    num_rows = rows.page_tables.shape[0]
    assert rows.query_lens.shape == rows.context_lens.shape == (num_rows,)
    assert rows.page_tables.dtype == rows.query_lens.dtype == rows.context_lens.dtype == torch.int32
    call("latent_prefill", out_HTC, latent_prefill_reference, queries, cache, rows, scale, out_HTC)


def latent_prefill_reference(
    queries: LatentQueries, cache: PagedKV, rows: PrefillRows, scale: float, out_HTC: Tensor
) -> None:
    query_THD = _join(queries)
    out_THD = torch.empty_like(query_THD)
    cache = _without_codes(queries, cache)
    paged_prefill_reference(query_THD, cache, rows, AttentionOptions(scale), out_THD)
    out_HTC.copy_(out_THD[:, :, : out_HTC.shape[2]].transpose(0, 1))


def _check(queries: LatentQueries, cache: PagedKV, out_HTC: Tensor) -> None:
    assert queries.plain.shape == out_HTC.shape
    assert queries.rotated.shape[:2] == out_HTC.shape[:2]
    assert queries.plain.dtype == queries.rotated.dtype == out_HTC.dtype
    num_rotated = queries.rotated.shape[2]
    assert latent_size_of(cache, num_rotated) == out_HTC.shape[2] + num_rotated
    assert cache.num_heads == 1
    assert cache.holds(out_HTC.dtype)


def _without_codes(queries: LatentQueries, cache: PagedKV) -> PagedKV:
    """Returns the cache with the values of its codes, if it has some."""
    if cache.key_scales is None:
        return cache
    code_S1C = cache.keys[..., : queries.plain.shape[2]].to(queries.plain.dtype)
    rotated_S1X = cache.keys[..., code_S1C.shape[2] :].contiguous().view(torch.bfloat16)
    values = code_S1C.float() * cache.key_scales[..., None].float(), rotated_S1X.float()
    latents = torch.cat(values, 2).to(queries.plain.dtype)
    return PagedKV(latents, latents, cache.page_size)


def _join(queries: LatentQueries) -> Tensor:
    """Returns the queries as those of attention are, [T, H, C + X]."""
    return torch.cat((queries.plain, queries.rotated), dim=2).transpose(0, 1).contiguous()
