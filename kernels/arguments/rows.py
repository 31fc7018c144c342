"""Arguments that describe the rows or the heads of a step.

Shape legend: R rows, P pages a row (padded), N tiles or drawn rows, M positions, D head dimension, X pairs of values,
V vocabulary.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class RopeTables(NamedTuple):
    """The angles of positions. The first 2 X values of a head are rotated, value i with value i + X."""

    cosines: Tensor
    """float32 [M, X], as are sines. They may be multiplied by a factor, which the rotated values then have."""
    sines: Tensor
    query_row: int = 0
    """The row of queries' first position: 0, or another where queries have other tables than keys."""


@dataclass(frozen=True)
class PrefillRows:
    """The rows of a step with many new tokens each, all columns int32."""

    page_tables: Tensor
    """[R, P], padded with -1."""
    query_lens: Tensor
    """[R]: new tokens; 0 for the padding of a captured step."""
    context_lens: Tensor
    """[R]: earlier tokens."""
    tiles: Tensor | None = None
    """[N, 8]: the tiles that `PrefillTiles` planned, or `LatentTiles`. With them the Triton kernel
    runs without waiting for the device; other kernels do not need them."""
    last_keys: Tensor | None = None
    """[T]: the last of its row's tokens that each token attends to: itself or a later one, ascending in a row. `None`:
    itself."""
    is_long: bool = False
    """`tiles` are `LONG_TILES`."""


class WholeRows(NamedTuple):
    """The rows of a step whose tokens also attend to later ones: first those of a single token."""

    num_single: int
    lens: Tensor
    """int32 [R]: tokens of each further row; 0 for the padding of a captured step."""


@dataclass(frozen=True)
class HeadNorms:
    """The norms of all query heads, of all key heads and, possibly, of all value heads.

    Each weight is [D], of the heads' dtype.
    """

    query_weight: Tensor
    key_weight: Tensor
    eps: float
    value_weight: Tensor | None = None

    @property
    def weights(self) -> tuple[Tensor | None, ...]:
        return self.query_weight, self.key_weight, self.value_weight


class RowDraws(NamedTuple):
    """How each row is drawn, all [N]; the filters are those of `filter_scores.py`, in its order."""

    temperatures: Tensor
    """float32, above 0."""
    seeds: Tensor
    """int64, as are positions."""
    positions: Tensor
    top_ks: Tensor
    """int64; V or more keeps all tokens."""
    top_ps: Tensor
    """float32; 1 keeps all tokens."""
    min_ps: Tensor
    """float32; 0 keeps all tokens."""
