"""The plans of decode and prefill attention against models that take one key at a time."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.plans.decode_work import (
    BLOCK_KEYS,
    ENTRY_WORDS,
    HEADER_WORDS,
    ITEM_WORDS,
    MIN_ITEM_BLOCKS,
    DecodeLayout,
    plan_decode_work,
)
from kernels.plans.prefill_tiles import ALL_SPLITS, NO_PART, TILE_WORDS, max_prefill_tiles, plan_prefill_tiles
from kernels.plans.shared_runs import MAX_LEVELS, MIN_TOKENS, find_shared_runs

UNTOUCHED = -77


@pytest.fixture(autouse=True)
def backend() -> None:
    """Plans are the same whatever computes."""


class Plan:
    """A plan read back: items as (first key, end key, rows), the part of each (item, row), the parts of each row."""

    def __init__(self, layout: DecodeLayout, words: np.ndarray):
        num_items = int(words[0])
        assert num_items <= layout.max_items
        entries = words[layout.entries_word : layout.parts_word].reshape(-1, ENTRY_WORDS).tolist()
        self.items: list[tuple[int, int, list[int]]] = []
        self.parts: dict[int, list[int]] = {}
        self.used_entries: list[int] = []
        items = words[HEADER_WORDS : HEADER_WORDS + ITEM_WORDS * num_items].reshape(-1, ITEM_WORDS).tolist()
        for first_key, end_key, first_entry, num_entries in items:
            assert 1 <= num_entries <= layout.max_item_rows
            self.used_entries += range(first_entry, first_entry + num_entries)
            mine = entries[first_entry : first_entry + num_entries]
            self.items.append((first_key, end_key, [row for row, _ in mine]))
            for row, part in mine:
                self.parts.setdefault(row, []).append(part)
        self.first_parts = words[layout.parts_word : layout.parts_word + layout.max_rows + 1].tolist()

    @property
    def num_keys_read(self) -> int:
        return sum(end_key - first_key for first_key, end_key, _ in self.items)


def make_plan(
    layout: DecodeLayout, num_keys: list[int], tables: np.ndarray, page_size: int, window: int | None = None
) -> Plan:
    words = np.full(layout.num_words, UNTOUCHED, np.int32)
    plan_decode_work(layout, np.array(num_keys, np.int32), tables, page_size, words, window)
    return Plan(layout, words)


def check_plan(
    plan: Plan,
    layout: DecodeLayout,
    num_keys: list[int],
    tables: np.ndarray,
    page_size: int,
    window: int | None = None,
) -> None:
    """Every key of a row's window is in one item, whose rows have the same pages; parts are numbered without a gap."""
    seen: Counter[tuple[int, int]] = Counter()
    for first_key, end_key, rows in plan.items:
        assert first_key < end_key
        assert len(set(rows)) == len(rows)
        pages = slice(first_key // page_size, (end_key - 1) // page_size + 1)
        for row in rows:
            assert tables[row, pages].tolist() == tables[rows[0], pages].tolist()
            seen.update((row, key) for key in range(first_key, end_key))
    begins = [max(0, count - (window or count)) for count in num_keys]
    assert seen == Counter((row, key) for row, count in enumerate(num_keys) for key in range(begins[row], count))
    assert sorted(plan.used_entries) == list(range(len(plan.used_entries)))
    assert len(plan.used_entries) <= layout.max_entries
    for row in range(layout.max_rows):
        first, end = plan.first_parts[row : row + 2]
        parts = plan.parts.get(row, [])
        assert sorted(parts) == (list(range(first, end)) if len(parts) > 1 else [-1] * len(parts))
        assert end - first == (len(parts) if len(parts) > 1 else 0)
    assert plan.first_parts[-1] <= layout.max_entries
    lengths = [end_key - first_key for first_key, end_key, _ in plan.items]
    assert lengths == sorted(lengths, reverse=True)


@st.composite
def tables_that_share(draw: st.DrawFn, page_size: int) -> tuple[list[int], np.ndarray]:
    """Rows that form a tree: each continues an earlier row from some length, or starts fresh."""
    fresh = iter(range(1 << 20))
    rows: list[list[int]] = []
    num_keys: list[int] = []
    for _ in range(draw(st.integers(1, 12))):
        pages: list[int] = []
        if rows and draw(st.booleans()):
            other = draw(st.sampled_from(rows))
            pages = other[: draw(st.integers(0, len(other)))]
        pages = pages + [next(fresh) for _ in range(draw(st.integers(1, -(-200 // page_size))))]
        rows.append(pages)
        # The last page is its row's own: there the row writes.
        num_keys.append((len(pages) - 1) * page_size + draw(st.integers(1, page_size)))
        if draw(st.integers(0, 9)) == 0:
            num_keys[-1] = 0
    tables = np.full((len(rows), max(map(len, rows)) + draw(st.integers(0, 2))), -1, np.int32)
    for row, pages in enumerate(rows):
        tables[row, : len(pages)] = pages
    order = draw(st.permutations(range(len(rows))))
    return [num_keys[row] for row in order], tables[list(order)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_plan_covers_every_key_of_every_row_once(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 16, 64]))
    num_keys, tables = data.draw(tables_that_share(page_size))
    num_kv_heads = data.draw(st.sampled_from([1, 2, 3, 8]))
    layout = DecodeLayout(
        max_rows=len(num_keys) + data.draw(st.integers(0, 3)),
        num_heads=num_kv_heads * data.draw(st.sampled_from([1, 2, 3, 5, 8, 17])),
        num_kv_heads=num_kv_heads,
        num_programs=data.draw(st.sampled_from([1, 4, 60, 528])),
        shares_prefixes=data.draw(st.booleans()),
    )
    window = data.draw(st.none() | st.integers(1, 220))
    plan = make_plan(layout, num_keys, tables, page_size, window)
    check_plan(plan, layout, num_keys, tables, page_size, window)
    num_seen = sum(min(count, window or count) for count in num_keys)
    assert plan.num_keys_read <= num_seen
    if not layout.shares_prefixes:
        assert plan.num_keys_read == num_seen


def slow_shared_pages(num_keys: list[int], tables: np.ndarray, page_size: int) -> set[tuple[int, int, frozenset[int]]]:
    """Returns the runs as (first page, end page, rows): the groups of rows that share enough, within them again."""

    def split(rows: list[int], start: int, level: int) -> Iterator[tuple[int, int, frozenset[int]]]:
        least = start + -(-MIN_TOKENS // page_size)
        groups: dict[tuple[int, ...], list[int]] = {}
        for row in rows:
            if num_keys[row] // page_size >= least:
                groups.setdefault(tuple(tables[row, :least].tolist()), []).append(row)
        for group in groups.values():
            if len(group) > 1:
                end = least
                limit = min(num_keys[row] // page_size for row in group)
                while end < limit and len(set(tables[group, end].tolist())) == 1:
                    end += 1
                yield start, end, frozenset(group)
                if level + 1 < MAX_LEVELS:
                    yield from split(group, end, level + 1)

    return set(split(list(range(len(num_keys))), 0, 0))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_shared_runs_are_those_that_a_search_page_by_page_finds(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([16, 64]))
    num_keys, tables = data.draw(tables_that_share(page_size))
    shared = find_shared_runs(np.array(num_keys, np.int32), tables, page_size)
    runs = zip(shared.first_pages, shared.end_pages, shared.first_members, shared.num_members, strict=True)
    found = [(int(s), int(e), frozenset(shared.members[f : f + n].tolist())) for s, e, f, n in runs]
    expected = slow_shared_pages(num_keys, tables, page_size)
    assert len(found) == len(set(found))
    assert set(found) == expected
    covered = [max((end for _, end, rows in expected if row in rows), default=0) for row in range(len(num_keys))]
    assert shared.num_pages.tolist() == covered


def tables_of_one_prefix(num_rows: int, num_shared: int, num_own: int) -> np.ndarray:
    own = 1000 + np.arange(num_rows * num_own).reshape(num_rows, num_own)
    return np.concatenate((np.tile(np.arange(num_shared), (num_rows, 1)), own), axis=1).astype(np.int32)


def test_rows_of_one_prefix_read_it_once_for_as_many_as_an_item_takes() -> None:
    tables = tables_of_one_prefix(num_rows=17, num_shared=16, num_own=1)
    num_keys = [16 * 16 + 5] * 17
    alone = make_plan(DecodeLayout(17, 4, 2, 60, False), num_keys, tables, 16)
    assert alone.num_keys_read == sum(num_keys)
    shared = make_plan(DecodeLayout(17, 4, 2, 60, True), num_keys, tables, 16)
    assert shared.num_keys_read == 3 * 256 + 17 * 5


def test_a_prefix_within_a_prefix_is_read_once_too() -> None:
    tables = tables_of_one_prefix(num_rows=6, num_shared=20, num_own=1)
    tables[3:, 8:20] = 500 + np.arange(12)
    plan = make_plan(DecodeLayout(6, 1, 1, 1, True), [20 * 16 + 1] * 6, tables, 16)
    assert plan.num_keys_read == 8 * 16 + 2 * 12 * 16 + 6


def test_a_prefix_of_fewer_than_128_tokens_is_not_shared() -> None:
    tables = tables_of_one_prefix(num_rows=2, num_shared=7, num_own=1)
    plan = make_plan(DecodeLayout(2, 1, 1, 1, True), [7 * 16 + 1] * 2, tables, 16)
    assert plan.num_keys_read == 2 * (7 * 16 + 1)


def test_the_fullest_plans_fit() -> None:
    """Groups of one row more than an item takes, within such groups, with prefixes of the least length."""
    for queries in (8, 4, 1):
        size = 16 // queries + 1
        num_rows = 2 * size
        tables = tables_of_one_prefix(num_rows, num_shared=16, num_own=1)
        tables[size:, 8:16] += 500
        for num_programs in (4, 528):
            layout = DecodeLayout(num_rows, queries, 1, num_programs, True)
            num_keys = [16 * 16 + 1] * num_rows
            check_plan(make_plan(layout, num_keys, tables, 16), layout, num_keys, tables, 16)


def test_a_long_row_is_cut_for_all_programs_and_a_short_one_is_not() -> None:
    layout = DecodeLayout(2, 8, 8, 528, False)
    tables = np.arange(2 * 1000, dtype=np.int32).reshape(2, 1000)
    plan = make_plan(layout, [16000, 10], tables, 16)
    assert len(plan.parts[0]) == 63
    assert plan.parts[1] == [-1]
    longest = max(end - first for first, end, _ in plan.items)
    assert longest == 256
    short = make_plan(layout, [MIN_ITEM_BLOCKS * BLOCK_KEYS, 10], tables, 16)
    assert short.parts == {0: [-1], 1: [-1]}


def test_no_rows_make_no_items() -> None:
    layout = DecodeLayout(4, 2, 2, 60, True)
    plan = make_plan(layout, [], np.empty((0, 5), np.int32), 16)
    assert plan.items == []
    assert plan.first_parts == [0] * 5
    assert make_plan(layout, [0, 0], np.full((2, 5), -1, np.int32), 16).items == []


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 300)), min_size=0, max_size=8),
    st.integers(0, 3),
    st.sampled_from((1, 25, 64)),
)
def test_tiles_cover_every_new_token_once(rows: list[tuple[int, int]], num_spare: int, tile_tokens: int) -> None:
    query_lens = np.array([new for new, _ in rows], np.int32)
    context_lens = np.array([before for _, before in rows], np.int32)
    capacity = max_prefill_tiles(int(query_lens.sum()), len(rows), tile_tokens) + num_spare
    tiles = np.full((capacity, TILE_WORDS), UNTOUCHED, np.int32)
    plan_prefill_tiles(query_lens, context_lens, tiles, tile_tokens)
    starts = np.cumsum(query_lens) - query_lens
    seen: Counter[tuple[int, int]] = Counter()
    costs = []
    for row, first_query, first_token, num_queries, *splits in tiles.tolist():
        if row == -1:
            continue
        assert splits == [0, ALL_SPLITS, NO_PART, 1]
        assert 1 <= num_queries <= tile_tokens
        assert first_token == starts[row] + first_query
        costs.append(int(context_lens[row]) + first_query)
        seen.update((row, query) for query in range(first_query, first_query + num_queries))
    assert seen == Counter((row, query) for row, (new, _) in enumerate(rows) for query in range(new))
    assert costs == sorted(costs, reverse=True)
    assert (tiles[len(costs) :, 0] == -1).all()
