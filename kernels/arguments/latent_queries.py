"""Queries of attention to latents: those of a head lie together, as each head has products of its own.

A latent is what the keys and values of all heads of a token are computed from: C values and, behind them, X rotated
ones that are a part of every head's key. The cache is a `PagedKV` with one head, whose K and V are the same tensor.
A cache of codes has codes of the C values, with one scale, and behind them the X ones as bfloat16, each in two bytes.

Shape legend: H heads, T tokens, N values of a query that are not rotated, X rotated ones, M positions.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import RopeTables


def latent_size_of(cache: PagedKV, num_rotated: int) -> int:
    """Returns C + X."""
    return cache.head_dim - (0 if cache.key_scales is None else num_rotated)


class LatentQueries(NamedTuple):
    plain: Tensor
    """[H, T, N], or [H, T, C] once they are multiplied by what makes keys of latents."""
    rotated: Tensor
    """[H, T, X]"""
    ends: Tensor
    """int32 [H]: the end of each head's rows, if all are one after another."""

    def of(self, tokens: slice | Tensor) -> "LatentQueries":
        """Returns the queries of some tokens, a view if they are a slice. It has no ends."""
        return LatentQueries(self.plain[:, tokens], self.rotated[:, tokens], self.ends[:0])

    def with_ends(self) -> "LatentQueries":
        num_heads, num_tokens, _ = self.plain.shape
        ends_H = torch.arange(1, num_heads + 1, dtype=torch.int32, device=self.plain.device) * num_tokens
        return self._replace(ends=ends_H)


class LatentTokens(NamedTuple):
    """The tokens of a step as their linears make them."""

    queries: Tensor
    """[T, H, N + X]"""
    latents: Tensor
    """[T, C + X]"""
    positions: Tensor
    """int32 [T]"""
    slots: Tensor
    """int64 [T]: where the latent of a token is stored, no slot twice; -1 skips it."""


@dataclass(frozen=True)
class LatentNorm:
    """How latents and queries become what attention multiplies.

    `weight` [C] and `eps` are those of the norm of latents. `growth`, float32 [M]: what all of a query is multiplied by
    at each position; `tables` then have it for its rotated part, in the rows of queries.
    """

    weight: Tensor
    eps: float
    tables: RopeTables
    growth: Tensor | None = None
