"""The work list of attention to latents: which program computes which tokens over which keys, planned on the host.

Prompts, draft tokens and decode rows have the same list. A *tile* is some tokens of a row with all their heads, which
`num_blocks` programs compute. If there are few tiles, their keys are cut: each piece writes a *part*, and the parts of
a tile are merged in order.

With `split_keys`, for fixed launches, all pieces begin at multiples of it, and only a tile's first piece may have more
keys: a program adds splits of this size in the order in which the merge adds the others. So how a list cuts tiles
changes no bit.

Shape legend: C rows, N lines of a list.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from torch import Tensor

from kernels.plans.decode_work import PlanLayout
from kernels.plans.prefill_tiles import NO_PART, TILE_WORDS, max_prefill_tiles
from kernels.plans.shared_runs import ranges

Lines = TypeVar("Lines", np.ndarray, Tensor)

NUM_PROGRAMS = 256
"""Tiles are cut until about this many programs have keys: a large GPU (132 processors in an H100) is busy then."""

MIN_PIECE_KEYS = 128
"""A shorter piece costs more in merging than it saves."""


@dataclass(frozen=True)
class LatentTiles:
    """How the tokens of a step become tiles, for one number of heads."""

    tile_tokens: int
    num_blocks: int
    split_keys: int
    """0: keys are cut anywhere."""

    @property
    def max_cut(self) -> int:
        """The maximum number of tiles that are cut."""
        return max(1, NUM_PROGRAMS // self.num_blocks)

    @property
    def max_parts(self) -> int:
        return 2 * self.max_cut

    def max_lines(self, max_tokens: int, max_rows: int) -> int:
        """Returns the size of a list: cutting adds `max_cut` pieces at most, and there is a line for each cut tile."""
        num_tiles = max_prefill_tiles(max_tokens, max_rows, self.tile_tokens)
        return num_tiles + self.max_cut + min(num_tiles, self.max_cut)

    def split_list(self, lines_N8: Lines) -> tuple[Lines, Lines]:
        """Returns the lines of pieces and those of cut tiles of a list, whose size `max_lines` has returned."""
        num_pieces = len(lines_N8) - min((len(lines_N8) - self.max_cut) // 2, self.max_cut)
        return lines_N8[:num_pieces], lines_N8[num_pieces:]

    def plan(self, query_lens_C: np.ndarray, context_lens_C: np.ndarray, lines_N8: np.ndarray) -> None:
        """Writes the list of the rows' new tokens into `lines_N8` (int32), the pieces with the most keys first.

        A piece: (row, position of the first token, its number in the step, number of tokens, first key, end of keys,
        part, 0). The rest has row -1. Cut tiles: (first token's number in the step, number of tokens, first part, end
        of parts, 0, 0, 0, 0), then zeros.
        """
        query_lens_C, context_lens_C = query_lens_C.astype(np.int64), context_lens_C.astype(np.int64)
        num_tiles_C = -(-query_lens_C // self.tile_tokens)
        rows = np.repeat(np.arange(len(query_lens_C)), num_tiles_C)
        first_queries = ranges(np.zeros_like(num_tiles_C), num_tiles_C) * self.tile_tokens
        first_tokens = (query_lens_C.cumsum() - query_lens_C)[rows] + first_queries
        num_tokens = np.minimum(self.tile_tokens, query_lens_C[rows] - first_queries)
        positions = context_lens_C[rows] + first_queries
        tiles, first_keys, end_keys, places, num_pieces = self._cut(positions + num_tokens)
        num_parts = np.where(num_pieces > 1, num_pieces, 0)
        first_parts = num_parts.cumsum() - num_parts
        parts = np.where(num_parts[tiles] > 0, first_parts[tiles] + places, NO_PART)
        columns = (rows[tiles], positions[tiles], first_tokens[tiles], num_tokens[tiles], first_keys, end_keys, parts)
        order = (first_keys - end_keys).argsort(kind="stable")
        pieces_N8, cut_N8 = self.split_list(lines_N8)
        pieces_N8[: len(order), :7] = np.stack(columns, axis=1)[order]
        pieces_N8[: len(order), 7] = 0
        pieces_N8[len(order) :, 0] = -1
        is_cut = num_parts > 0
        found = np.stack((first_tokens, num_tokens, first_parts, first_parts + num_parts), axis=1)[is_cut]
        cut_N8[:] = 0
        cut_N8[: len(found), :4] = found

    def _cut(self, num_keys: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns each piece's tile, first key, end of keys and place in the tile, and each tile's number of pieces."""
        if self.split_keys:
            num_splits = -(-num_keys // self.split_keys)
            num_pieces = np.minimum(num_splits, max(1, self.max_cut // max(1, len(num_keys))))
        else:
            keys_a_program = -(-int(num_keys.sum()) // self.max_cut)
            piece_keys = max(1, -(-keys_a_program // MIN_PIECE_KEYS)) * MIN_PIECE_KEYS
            num_pieces = -(-num_keys // piece_keys)
        tiles = np.repeat(np.arange(len(num_keys)), num_pieces)
        places = ranges(np.zeros_like(num_pieces), num_pieces)
        if self.split_keys:
            end_keys = ((num_splits - num_pieces)[tiles] + places + 1) * self.split_keys
            first_keys = np.where(places == 0, 0, end_keys - self.split_keys)
        else:
            first_keys, end_keys = places * piece_keys, (places + 1) * piece_keys
        return tiles, first_keys, np.minimum(end_keys, num_keys[tiles]), places, num_pieces


@dataclass(frozen=True)
class LatentLayout(PlanLayout):
    """The capacity of the list of a step's decode rows."""

    tiles: LatentTiles
    max_rows: int

    @cached_property
    def num_words(self) -> int:
        return self.tiles.max_lines(self.max_rows, self.max_rows) * TILE_WORDS


def plan_latent_work(
    layout: LatentLayout,
    num_keys_R: np.ndarray,
    _page_tables_RP: np.ndarray,
    _page_size: int,
    plan: np.ndarray,
    _window: int | None = None,
) -> None:
    """Writes the work list of decode rows into `plan`, as `plan_decode_work`."""
    assert plan.shape == (layout.num_words,)
    num_new_R = np.minimum(num_keys_R, 1)
    layout.tiles.plan(num_new_R, num_keys_R - num_new_R, plan.reshape(-1, TILE_WORDS))
