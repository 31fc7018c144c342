"""The tile list of prefill attention: which program computes which new tokens of which row, planned on the host.

Shape legend: C rows, N tiles.
"""

from dataclasses import dataclass

import numpy as np

from kernels.plans.shared_runs import ranges

TILE_WORDS = 8
ALL_SPLITS, NO_PART = (1 << 31) - 1, -1

LONG_TILE_TOKENS = 128
"""The tokens of a tile of a long prompt. It has one query head."""
LONG_STEP_TOKENS, LONG_ROW_TOKENS, MAX_LONG_KEYS = 4096, 1024, 1 << 17
"""A step with long prompts has more new tokens than any graph, this many in a row on average, and at most these keys,
which are copied: 512 MB with 8 heads of 128."""


def max_prefill_tiles(max_tokens: int, max_rows: int, tile_tokens: int) -> int:
    """Returns the maximum number of tiles of a step with up to `max_tokens` new tokens in up to `max_rows` rows."""
    return min(max_tokens, max_tokens // tile_tokens + max_rows)


def plan_prefill_tiles(
    query_lens_C: np.ndarray, context_lens_C: np.ndarray, tiles_N8: np.ndarray, tile_tokens: int
) -> None:
    """Writes the tiles of the rows' new tokens into `tiles_N8` (int32), the ones with the most keys first.

    A tile: (row, first token in the row's new ones, first token in the step's, number of tokens), and what only fixed
    launches read: (first split, end of splits, part, whether it has the row's first keys), of a tile with all of them.
    The rest of the list has row -1. A row without new tokens gets no tile.
    """
    assert tiles_N8.dtype == np.int32
    query_lens_C = query_lens_C.astype(np.int64)
    num_tiles_C = -(-query_lens_C // tile_tokens)
    rows = np.repeat(np.arange(len(query_lens_C)), num_tiles_C)
    first_queries = ranges(np.zeros_like(num_tiles_C), num_tiles_C) * tile_tokens
    order = (-context_lens_C[rows] - first_queries).argsort(kind="stable")
    rows, first_queries = rows[order], first_queries[order]
    first_tokens_C = np.cumsum(query_lens_C) - query_lens_C
    tiles_N8[: len(rows), 0] = rows
    tiles_N8[: len(rows), 1] = first_queries
    tiles_N8[: len(rows), 2] = first_tokens_C[rows] + first_queries
    tiles_N8[: len(rows), 3] = np.minimum(tile_tokens, query_lens_C[rows] - first_queries)
    tiles_N8[: len(rows), 4:] = 0, ALL_SPLITS, NO_PART, 1
    tiles_N8[len(rows) :, 0] = -1


def are_long(num_tokens: int, num_rows: int, num_keys: int) -> bool:
    """True if prompts are worth copying their keys; each row has room for `num_keys`."""
    is_long = num_tokens > LONG_STEP_TOKENS and num_tokens >= LONG_ROW_TOKENS * num_rows
    return is_long and num_rows * num_keys <= MAX_LONG_KEYS


@dataclass(frozen=True)
class PrefillTiles:
    """Tiles of this many tokens."""

    tile_tokens: int

    def max_lines(self, max_tokens: int, max_rows: int) -> int:
        return max_prefill_tiles(max_tokens, max_rows, self.tile_tokens)

    def plan(self, query_lens_C: np.ndarray, context_lens_C: np.ndarray, tiles_N8: np.ndarray) -> None:
        plan_prefill_tiles(query_lens_C, context_lens_C, tiles_N8, self.tile_tokens)


LONG_TILES = PrefillTiles(LONG_TILE_TOKENS)
