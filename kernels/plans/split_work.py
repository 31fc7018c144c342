"""The work list of decode attention if launches are fixed: a row's keys are cut at multiples of a fixed number.

A *split* is a stretch of `SPLIT_KEYS` keys at a multiple of it. The sums of a row are those of its splits, added in
their order, by a program that reads several of them or by the merge. So how a list spreads the splits over
programs, and with it the number of rows, changes no bit.

Shape legend: R rows, N tiles.
"""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.plans.decode_work import DecodeScratch, PlanLayout
from kernels.plans.prefill_tiles import ALL_SPLITS, NO_PART, TILE_WORDS
from kernels.plans.shared_runs import ranges

SPLIT_KEYS = 512

MAX_PARTS = 256
"""Splits of all rows that have programs of their own. The earlier splits of a longer row share one."""


@dataclass(frozen=True)
class SplitLayout(PlanLayout):
    """The capacity of a work list: its tiles, as those of prefill with one new token each, then the first part of each
    row and, last, the number of parts."""

    max_rows: int
    num_heads: int

    @property
    def max_tiles(self) -> int:
        return max(self.max_rows, MAX_PARTS)

    @property
    def parts_word(self) -> int:
        return self.max_tiles * TILE_WORDS


def make_split_scratch(layout: SplitLayout, head_dim: int, device: torch.device) -> DecodeScratch:
    """`lses` are the maxima of parts, and behind them their sums, by which partials are not divided yet."""
    return DecodeScratch(
        torch.empty(MAX_PARTS, layout.num_heads, head_dim, dtype=torch.float32, device=device),
        torch.empty(2 * MAX_PARTS, layout.num_heads, dtype=torch.float32, device=device),
        torch.empty(0, dtype=torch.int32, device=device),
    )


def plan_split_work(
    layout: SplitLayout,
    num_keys_R: np.ndarray,
    _page_tables_RP: np.ndarray,
    _page_size: int,
    plan: np.ndarray,
    window: int | None = None,
) -> None:
    """Writes the work list of the rows into `plan`, as `plan_decode_work`; a row reads its last `window` keys."""
    assert len(num_keys_R) <= layout.max_rows
    assert plan.dtype == np.int32
    assert plan.shape == (layout.num_words,)
    num_keys_R = num_keys_R.astype(np.int64)
    begins_R = 0 * num_keys_R if window is None else np.maximum(num_keys_R - window, 0) // SPLIT_KEYS
    num_splits_R = -(-num_keys_R // SPLIT_KEYS) - begins_R
    num_tiles_R = np.minimum(num_splits_R, max(1, MAX_PARTS // max(1, len(num_keys_R))))
    rows = np.repeat(np.arange(len(num_keys_R)), num_tiles_R)
    places = ranges(np.zeros_like(num_tiles_R), num_tiles_R)
    ends = (begins_R + num_splits_R - num_tiles_R)[rows] + places + 1
    num_parts_R = np.where(num_tiles_R > 1, num_tiles_R, 0)
    first_parts = np.zeros(layout.max_rows + 1, np.int64)
    first_parts[1 : len(num_parts_R) + 1] = num_parts_R.cumsum()
    first_parts[len(num_parts_R) + 1 :] = num_parts_R.sum()
    tiles_N8 = plan[: layout.parts_word].reshape(-1, TILE_WORDS)
    own_N8 = tiles_N8[: len(rows)]
    own_N8[:, :4] = np.stack((rows, np.full_like(rows, -1), rows, np.ones_like(rows)), axis=1)
    own_N8[:, 4] = np.where(places == 0, begins_R[rows], ends - 1)
    own_N8[:, 5] = np.where(num_tiles_R[rows] == 1, ALL_SPLITS, ends)
    own_N8[:, 6] = np.where(num_tiles_R[rows] == 1, NO_PART, first_parts[rows] + places)
    own_N8[:, 7] = places == 0
    tiles_N8[len(rows) :, 0] = -1
    plan[layout.parts_word : layout.parts_word + len(first_parts)] = first_parts
