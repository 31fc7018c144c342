"""Normalizes, rotates and stores the latents of a step's tokens, rotates their queries, and lays these out by head.

Shape legend: T tokens, H heads, N values of a query that are not rotated, X rotated ones, D = N + X, C values of a
latent that are not rotated, L = C + X, M positions.
"""

import torch
from torch import Tensor

from kernels.arguments.latent_queries import LatentNorm, LatentQueries
from kernels.arguments.paged_kv import PagedKV
from kernels.dispatch import call
from kernels.operations.rms_norm import rms_norm_reference
from kernels.operations.rope import rope
from kernels.operations.store_kv import store_kv


def store_latents(
    query_THD: Tensor,
    latent_TL: Tensor,
    cache: PagedKV,
    norm: LatentNorm,
    positions_T: Tensor,
    slots_T: Tensor,
    queries: LatentQueries,
) -> None:
    """Stores the latent of token t in slot `slots_T[t]` (int64, no slot twice; -1 skips it) and sets `queries`.

    The last X values of queries and latents are rotated, value i with value i + X / 2. `query_THD` and `latent_TL` are
    undefined afterwards.
    """
    (num_tokens, num_heads, size), num_rotated = query_THD.shape, queries.rotated.shape[2]
    assert queries.plain.shape == (num_heads, num_tokens, size - num_rotated)
    assert queries.rotated.shape == (num_heads, num_tokens, num_rotated)
    assert latent_TL.shape == (num_tokens, len(norm.weight) + num_rotated)
    assert cache.head_dim == latent_TL.shape[1]
    assert cache.num_heads == 1
    assert cache.holds(latent_TL.dtype)
    assert 2 * norm.tables.cosines.shape[1] == num_rotated
    assert slots_T.dtype == torch.int64
    assert positions_T.dtype == queries.ends.dtype == torch.int32
    arguments = query_THD, latent_TL, cache, norm, positions_T, slots_T, queries
    call("store_latents", query_THD, store_latents_reference, *arguments)


def store_latents_reference(
    query_THD: Tensor,
    latent_TL: Tensor,
    cache: PagedKV,
    norm: LatentNorm,
    positions_T: Tensor,
    slots_T: Tensor,
    queries: LatentQueries,
) -> None:
    num_rotated = queries.rotated.shape[2]
    rank = latent_TL.shape[1] - num_rotated
    latent_TL[:, :rank] = rms_norm_reference(latent_TL[:, :rank].contiguous(), norm.weight, norm.eps, None)
    plain_THN, rotated_THX = query_THD.split((query_THD.shape[2] - num_rotated, num_rotated), dim=2)
    rope(rotated_THX, latent_TL[:, None, rank:], norm.tables, positions_T)
    if norm.growth is not None:
        plain_THN = plain_THN * norm.growth[positions_T.long(), None, None]
    queries.plain.copy_(plain_THN.transpose(0, 1))
    queries.rotated.copy_(rotated_THX.transpose(0, 1))
    queries.ends.copy_(queries.with_ends().ends)
    store_kv(latent_TL[:, None], latent_TL[:, None], cache, slots_T)
