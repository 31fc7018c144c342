"""Normalizes, rotates and stores the latents of a step's tokens, rotates their queries, and lays these out by head.

Shape legend: T tokens, H heads, N values of a query that are not rotated, X rotated ones, D = N + X, C values of a
latent that are not rotated, L = C + X, M positions.
"""

import torch

from kernels.arguments.latent_queries import LatentNorm, LatentQueries, LatentTokens, latent_size_of
from kernels.arguments.paged_kv import PagedKV
from kernels.dispatch import call
from kernels.operations.quantized_kv import quantize_heads
from kernels.operations.rms_norm import rms_norm_reference
from kernels.operations.rope import rope
from kernels.operations.store_kv import store_kv


def store_latents(tokens: LatentTokens, cache: PagedKV, norm: LatentNorm, queries: LatentQueries) -> None:
    """Stores the latents of the tokens and sets `queries`.

    The last X values of queries and latents are rotated, value i with value i + X / 2. `tokens` are undefined
    afterwards.
    """
    (num_tokens, num_heads, size), num_rotated = tokens.queries.shape, queries.rotated.shape[2]
    assert queries.plain.shape == (num_heads, num_tokens, size - num_rotated)
    assert queries.rotated.shape == (num_heads, num_tokens, num_rotated)
    assert tokens.latents.shape == (num_tokens, len(norm.weight) + num_rotated)
    assert latent_size_of(cache, num_rotated) == tokens.latents.shape[1]
    assert cache.num_heads == 1
    assert cache.holds(tokens.latents.dtype)
    assert 2 * norm.tables.cosines.shape[1] == num_rotated
    assert tokens.slots.dtype == torch.int64
    assert tokens.positions.dtype == queries.ends.dtype == torch.int32
    call("store_latents", tokens.queries, store_latents_reference, tokens, cache, norm, queries)


def store_latents_reference(tokens: LatentTokens, cache: PagedKV, norm: LatentNorm, queries: LatentQueries) -> None:
    (query_THD, latent_TL, position_T, slot_T), num_rotated = tokens, queries.rotated.shape[2]
    rank = latent_TL.shape[1] - num_rotated
    latent_TL[:, :rank] = rms_norm_reference(latent_TL[:, :rank].contiguous(), norm.weight, norm.eps, None)
    plain_THN, rotated_THX = query_THD.split((query_THD.shape[2] - num_rotated, num_rotated), dim=2)
    rope(rotated_THX, latent_TL[:, None, rank:], norm.tables, position_T)
    if norm.growth is not None:
        plain_THN = plain_THN * norm.growth[position_T.long(), None, None]
    queries.plain.copy_(plain_THN.transpose(0, 1))
    queries.rotated.copy_(rotated_THX.transpose(0, 1))
    queries.ends.copy_(queries.with_ends().ends)
    if cache.key_scales is None:
        store_kv(latent_TL[:, None], latent_TL[:, None], cache, slot_T)
        return
    is_kept_T = slot_T >= 0
    code_TC, scale_T = quantize_heads(latent_TL[is_kept_T, :rank], cache.keys.dtype)
    both_TB = torch.cat((code_TC.view(torch.uint8), latent_TL[is_kept_T, rank:].bfloat16().view(torch.uint8)), 1)
    cache.keys.view(torch.uint8)[slot_T[is_kept_T], 0] = both_TB
    cache.key_scales[slot_T[is_kept_T], 0] = scale_T
