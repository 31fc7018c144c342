"""Which rows of a step share leading pages: found on the host, from their page tables alone.

Shape legend: R rows, P pages a row (padded), K rows that share pages, ordered by their tables, N runs.
"""

from dataclasses import dataclass

import numpy as np

MIN_TOKENS = 128
"""A shorter run costs more in items and merging than it saves in reading."""

MAX_LEVELS = 2
"""The maximum number of runs per row: one that many rows share (a system prompt), then one that a few share."""


@dataclass(frozen=True)
class SharedRuns:
    """Runs of whole pages, each shared by two or more rows at the same place. All arrays are int64."""

    first_pages: np.ndarray
    """[N]"""
    end_pages: np.ndarray
    """[N]"""
    first_members: np.ndarray
    """[N]: the index in `members` of a run's first row; its other rows follow."""
    num_members: np.ndarray
    """[N]"""
    members: np.ndarray
    """[K], row indices."""
    num_pages: np.ndarray
    """[R]: the leading pages of each row that its runs cover, without a gap."""


def find_shared_runs(num_keys_R: np.ndarray, page_tables_RP: np.ndarray, page_size: int) -> SharedRuns:
    """Returns the runs of at least `MIN_TOKENS` tokens; pages that a row's keys do not fill are not shared."""
    num_full_R = num_keys_R.astype(np.int64) // page_size
    least = -(-MIN_TOKENS // page_size)
    num_pages_R = np.zeros(len(num_keys_R), np.int64)
    members_K = _find_candidates(num_full_R, page_tables_RP, least)
    levels = [[np.empty(0, np.int64)] * 4]
    if len(members_K):
        members_K, num_equal = _order_by_pages(members_K, num_full_R, page_tables_RP)
        covered_K = np.zeros(len(members_K), np.int64)
        for _ in range(MAX_LEVELS):
            levels.append(_find_level(num_equal, covered_K, least))
        num_pages_R[members_K] = covered_K
    firsts, ends, first_members, num_members = map(np.concatenate, zip(*levels, strict=True))
    return SharedRuns(firsts, ends, first_members, num_members, members_K, num_pages_R)


def ranges(firsts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns firsts[0], firsts[0] + 1, … (sizes[0] numbers), then the same for firsts[1], and so on."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(firsts - ends + sizes, sizes)


def _find_candidates(num_full_R: np.ndarray, page_tables_RP: np.ndarray, least: int) -> np.ndarray:
    """Returns the rows that share the last page of a shortest run with another row: usually none."""
    if page_tables_RP.shape[1] < least:
        return np.empty(0, np.int64)
    rows = (num_full_R >= least).nonzero()[0]
    rows = rows[page_tables_RP[rows, least - 1].argsort(kind="stable")]
    pages = page_tables_RP[rows, least - 1]
    is_equal = np.concatenate(([False], pages[1:] == pages[:-1], [False]))
    return rows[is_equal[1:] | is_equal[:-1]] if len(rows) else rows


def _order_by_pages(
    rows_K: np.ndarray, num_full_R: np.ndarray, page_tables_RP: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows in the order of their tables, and how many leading pages each shares with the next one."""
    width = int(num_full_R[rows_K].max())
    tables = np.ascontiguousarray(page_tables_RP[rows_K, :width])
    order = tables.view(f"V{tables.itemsize * width}")[:, 0].argsort()
    rows_K, tables = rows_K[order], tables[order]
    is_other = np.ones((len(rows_K), width + 1), bool)
    is_other[:-1, :-1] = tables[1:] != tables[:-1]
    num_full_K = num_full_R[rows_K]
    num_equal = np.minimum(is_other[:-1].argmax(1), np.minimum(num_full_K[1:], num_full_K[:-1]))
    return rows_K, num_equal


def _find_level(num_equal: np.ndarray, covered_K: np.ndarray, least: int) -> list[np.ndarray]:
    """Returns the runs that continue where `covered_K` ends, and moves `covered_K` to their ends.

    The members of a run are neighbours that all share `least` pages more than are covered. Neighbours that the previous
    level put into different runs share no more than was covered.
    """
    continues = num_equal - covered_K[1:] >= least
    edges = np.diff(continues, prepend=False, append=False).nonzero()[0].reshape(-1, 2)
    first_members, num_members = edges[:, 0], edges[:, 1] - edges[:, 0] + 1
    if not len(edges):
        return [np.empty(0, np.int64)] * 4
    firsts = covered_K[first_members]
    ends = np.minimum.reduceat(np.append(num_equal, 0), edges.ravel())[::2]
    covered_K[ranges(first_members, num_members)] = np.repeat(ends, num_members)
    return [firsts, ends, first_members, num_members]
