"""The work list of decode attention: which program reads which keys for which rows, planned on the host.

A *run* is a stretch of one row's keys, or of keys that several rows share. It is cut into *items*; an item is read
once for all its rows. Each row of an item is an *entry*. A row's only entry writes the row's output; the entries of
other rows write *parts*, which are merged.

Shape legend: R rows, P pages a row (padded), N runs, I items, E entries.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kernels.plans.shared_runs import MAX_LEVELS, find_shared_runs, ranges

BLOCK_KEYS = 64
"""Keys that a program reads at a time; items are whole blocks except at a run's end."""

MIN_ITEM_BLOCKS = 2
UNCOMPILED = 4
"""Programs that work is planned for if no kernel is compiled."""

LANES = 16
"""The rows of a program's products, each one query head of one entry: the fewest that tensor cores take.

With 64 an item could have four times the rows, and a shared run would be read a quarter as often. But a program then
takes 255 registers instead of 114 (heads of 128), and only 2 run side by side instead of 4, shared rows or not.
"""

HEADER_WORDS, ITEM_WORDS, ENTRY_WORDS = 4, 4, 2
ENTRIES_PLACE, PARTS_PLACE = 1, 2
"""Header words with the offsets of entries and parts: they are read, so that one compiled kernel serves all layouts."""


def launch_shape_of(
    queries_a_head: int, head_dim: int, dtype: torch.dtype, cached: torch.dtype
) -> tuple[int, int, int]:
    """Returns attention's key of the launch table: query heads per key/value head, head dimension, and bytes of an
    element of the cache, or 4 if products are float32."""
    return queries_a_head, head_dim, dtype.itemsize if dtype == torch.float32 else cached.itemsize


@dataclass(frozen=True)
class DecodeShape:
    """The shape that decode attention is compiled for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    kv_codes: torch.dtype | None = None
    """The dtype of the cache's codes; `None` if the cache has the dtype above."""
    latent_rank: int | None = None
    """The values of a key that are the value, too: those of latents. `None` if K and V are two tensors."""

    @property
    def launch_shape(self) -> tuple[int, int, int]:
        return launch_shape_of(
            self.num_heads // self.num_kv_heads, self.head_dim, self.dtype, self.kv_codes or self.dtype
        )


class PlanLayout:
    """The capacity of a work list for up to `max_rows` rows, which ends with their parts from `parts_word` on."""

    max_rows: int
    parts_word: int

    @cached_property
    def num_words(self) -> int:
        """A multiple of 4, which keeps the next column aligned to 16 bytes."""
        return -(-(self.parts_word + self.max_rows + 1) // 4) * 4


@dataclass(frozen=True)
class DecodeLayout(PlanLayout):
    """The capacity of a work list and the offsets in it: fixed, so that a captured graph serves any step.

    The words of a plan, int32: the number of items, the offsets of entries and parts, an unused one; the items, each
    (first key, end of keys, first entry, number of entries), the longest first; the entries, each (row, part), with
    part -1 if the row has no other entry; the first part of each row and, last, the number of parts.
    """

    max_rows: int
    num_heads: int
    num_kv_heads: int
    num_programs: int
    """`dispatch.count_programs`: a long run is cut until about this many programs have an item."""
    shares_prefixes: bool
    """True if rows that share pages read them once."""
    merges_in_kernel: bool = False
    """True if the last item of a row to finish merges the row's parts; otherwise a second kernel does."""

    @property
    def queries_a_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @cached_property
    def block_lanes(self) -> int:
        return max(LANES, 1 << (self.queries_a_head - 1).bit_length())

    @cached_property
    def max_item_rows(self) -> int:
        """The maximum number of rows per item."""
        return self.block_lanes // self.queries_a_head if self.shares_prefixes else 1

    @cached_property
    def max_items(self) -> int:
        # Each run gives one item; cutting adds fewer than the programs per head.
        return self.max_rows + self._max_shared_blocks + self.num_programs // self.num_kv_heads

    @cached_property
    def max_entries(self) -> int:
        num_levels = MAX_LEVELS if self._max_shared_blocks else 0
        return self.max_rows * (1 + num_levels) + self.max_item_rows * (self.num_programs // self.num_kv_heads)

    @property
    def entries_word(self) -> int:
        return HEADER_WORDS + ITEM_WORDS * self.max_items

    @property
    def parts_word(self) -> int:
        return self.entries_word + ENTRY_WORDS * self.max_entries

    @property
    def _max_shared_blocks(self) -> int:
        """Shared runs cut by rows: c rows give ceil(c / most) blocks, most per row at c = 2 or most + 1."""
        most = self.max_item_rows
        return MAX_LEVELS * max(self.max_rows // 2, 2 * self.max_rows // (most + 1)) if most > 1 else 0


@dataclass(frozen=True)
class DecodeScratch:
    """Memory between items and merge. One made for the largest layout serves smaller layouts and all layers."""

    partials: Tensor
    """float32 [E, H, D]: the attention of each part over its own keys."""
    lses: Tensor
    """float32 [E, H]: base-2 logarithms of the sums that the partials were divided by."""
    counters: Tensor
    """int32 [R, G], zero between launches: the number of the row's finished entries."""


@dataclass(frozen=True)
class DecodeWork:
    """A planned work list on the device of the tensors."""

    layout: PlanLayout
    plan: Tensor
    """int32 [layout.num_words]"""
    scratch: DecodeScratch


def make_decode_scratch(layout: DecodeLayout, head_dim: int, device: torch.device) -> DecodeScratch:
    return DecodeScratch(
        torch.empty(layout.max_entries, layout.num_heads, head_dim, dtype=torch.float32, device=device),
        torch.empty(layout.max_entries, layout.num_heads, dtype=torch.float32, device=device),
        torch.zeros(layout.max_rows, layout.num_kv_heads, dtype=torch.int32, device=device),
    )


def plan_decode_work(
    layout: DecodeLayout,
    num_keys_R: np.ndarray,
    page_tables_RP: np.ndarray,
    page_size: int,
    plan: np.ndarray,
    window: int | None = None,
) -> None:
    """Writes the work list of the rows into `plan` (int32 [layout.num_words]); a row reads its last `window` keys.

    `num_keys_R` (int32) includes the row's new token. A row of 0 keys gets no work, nor do rows beyond R.
    """
    assert len(num_keys_R) == len(page_tables_RP) <= layout.max_rows
    assert plan.dtype == np.int32
    assert plan.shape == (layout.num_words,)
    items_I4, members = _plan_items(layout, num_keys_R, page_tables_RP, page_size, window)
    # Long items first: the last ones are short, and the processors finish together.
    items_I4 = items_I4[(items_I4[:, 0] - items_I4[:, 1]).argsort(kind="stable")]
    num_entries_I = items_I4[:, 3]
    rows_E = members[ranges(items_I4[:, 2], num_entries_I)]
    items_I4[:, 2] = np.cumsum(num_entries_I) - num_entries_I
    parts_E, first_parts = _number_parts(rows_E, layout.max_rows)
    plan[:HEADER_WORDS] = len(items_I4), layout.entries_word, layout.parts_word, 0
    plan[HEADER_WORDS : HEADER_WORDS + items_I4.size] = items_I4.ravel()
    entries = plan[layout.entries_word : layout.entries_word + ENTRY_WORDS * len(rows_E)].reshape(-1, ENTRY_WORDS)
    entries[:, 0], entries[:, 1] = rows_E, parts_E
    plan[layout.parts_word : layout.parts_word + len(first_parts)] = first_parts


def _plan_items(
    layout: DecodeLayout, num_keys_R: np.ndarray, page_tables_RP: np.ndarray, page_size: int, window: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the items (int64 [I, 4]) and row indices; an item's entries are a stretch of these indices."""
    runs_N4, members = _plan_runs(layout, num_keys_R, page_tables_RP, page_size, window)
    num_keys_N = runs_N4[:, 1] - runs_N4[:, 0]
    num_blocks_N = -(-num_keys_N // BLOCK_KEYS)
    keys_a_program = -(-int(num_keys_N.sum()) * layout.num_kv_heads // layout.num_programs)
    item_blocks = max(MIN_ITEM_BLOCKS, -(-keys_a_program // BLOCK_KEYS))
    runs, firsts, ends = _cut(num_blocks_N, -(-num_blocks_N // item_blocks))
    items_I4 = runs_N4[runs]
    items_I4[:, 1] = np.minimum(items_I4[:, 0] + ends * BLOCK_KEYS, items_I4[:, 1])
    items_I4[:, 0] += firsts * BLOCK_KEYS
    return items_I4, members


def _plan_runs(
    layout: DecodeLayout, num_keys_R: np.ndarray, page_tables_RP: np.ndarray, page_size: int, window: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the runs as `_plan_items` returns items: shared runs, cut by rows, and the rest of each row.

    Only rows whose whole context is in their window share.
    """
    rows = num_keys_R.nonzero()[0]
    first_keys_R = np.zeros_like(num_keys_R) if window is None else np.maximum(num_keys_R - window, 0)
    alone_N4 = np.stack((first_keys_R[rows], num_keys_R[rows], np.arange(len(rows)), np.ones_like(rows)), axis=1)
    if layout.max_item_rows == 1:
        return alone_N4, rows
    shared = find_shared_runs(np.where(first_keys_R == 0, num_keys_R, 0), page_tables_RP, page_size)
    alone_N4[:, 0] = np.maximum(alone_N4[:, 0], shared.num_pages[rows] * page_size)
    alone_N4 = alone_N4[alone_N4[:, 0] < alone_N4[:, 1]]
    runs, firsts, ends = _cut(shared.num_members, -(-shared.num_members // layout.max_item_rows))
    shared_N4 = np.stack(
        (
            shared.first_pages[runs] * page_size,
            shared.end_pages[runs] * page_size,
            len(rows) + shared.first_members[runs] + firsts,
            ends - firsts,
        ),
        axis=1,
    )
    return np.concatenate((shared_N4, alone_N4)), np.concatenate((rows, shared.members))


def _cut(sizes: np.ndarray, num_pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts each size into pieces that differ by at most 1; returns the index of the size, start and end per piece."""
    wholes = np.repeat(np.arange(len(sizes)), num_pieces)
    pieces = ranges(np.zeros_like(num_pieces), num_pieces)
    sizes, num_pieces = sizes[wholes], num_pieces[wholes]
    return wholes, pieces * sizes // num_pieces, (pieces + 1) * sizes // num_pieces


def _number_parts(rows_E: np.ndarray, max_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns each entry's part, -1 if its row has no other entry, and the first part of each row, end included."""
    assert max_rows < 1 << 15
    num_entries_R = np.bincount(rows_E, minlength=max_rows)
    num_parts_R = np.where(num_entries_R > 1, num_entries_R, 0)
    first_parts = np.zeros(max_rows + 1, np.int64)
    np.cumsum(num_parts_R, out=first_parts[1:])
    # 16-bit numbers are sorted by radix, several times as fast.
    by_row = rows_E.astype(np.int16).argsort(kind="stable")
    parts_E = np.empty(len(rows_E), np.int64)
    parts_E[by_row] = ranges(first_parts[:-1], num_entries_R)
    parts_E[num_entries_R[rows_E] == 1] = -1
    return parts_E, first_parts
