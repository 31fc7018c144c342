"""Filters that remove tokens before one is drawn: which rows of a step each applies to, with which numbers.

Shape legend: S rows that sample, N some of them, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from kernels.operations.filter_scores import filter_min_p, filter_top
from kernels.operations.filter_unusual import filter_top_n_sigma, filter_typical_p, filter_xtc
from messages.ring.axes import columns_of
from messages.ring.steps import Batch

ALL_TOKENS = (1 << 31) - 1
"""A top-k that removes nothing."""

Numbers = Mapping[str, np.ndarray]
"""Columns of `Batch` by name, [S]."""


def has_top(numbers: Numbers, vocab_size: int) -> np.ndarray:
    top_ks = numbers["top_ks"]
    return ((top_ks > 0) & (top_ks < vocab_size)) | (numbers["top_ps"] < 1)


def top_numbers(top_ks: np.ndarray, top_ps: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.where(top_ks > 0, top_ks, ALL_TOKENS).astype(np.int64), top_ps


class Filter(NamedTuple):
    """`columns` of `Batch` hold its numbers; `is_used` returns the rows (bool [S]) that lose tokens by it.

    `change` filters scores_NV, logits divided by their temperature, in place. Its other arguments are the results of
    `prepare` for the columns' entries of these rows, on their device.
    """

    name: str
    columns: tuple[str, ...]
    is_used: Callable[[Numbers, int], np.ndarray]
    change: Callable[..., None]
    prepare: Callable[..., tuple[np.ndarray, ...]] = lambda *numbers: numbers


FILTERS = (
    Filter(
        "top_n_sigma", ("top_n_sigmas",), lambda numbers, vocab_size: numbers["top_n_sigmas"] > 0, filter_top_n_sigma
    ),
    Filter("top", ("top_ks", "top_ps"), has_top, filter_top, top_numbers),
    Filter("min_p", ("min_ps",), lambda numbers, vocab_size: numbers["min_ps"] > 0, filter_min_p),
    Filter("typical_p", ("typical_ps",), lambda numbers, vocab_size: numbers["typical_ps"] < 1, filter_typical_p),
    Filter(
        "xtc",
        ("xtc_probabilities", "xtc_thresholds", "seeds", "sample_positions"),
        lambda numbers, vocab_size: (numbers["xtc_probabilities"] > 0) & (numbers["xtc_thresholds"] <= 0.5),
        filter_xtc,
    ),
)
"""In the order in which they are applied: transformers' order, and llama.cpp's for those that transformers lacks."""


ONE_READ = ("top", "min_p")
"""The filters that `draw_filtered` applies while it draws: on a GPU, rows with only these are not copied."""


ASKS_NOTHING = {
    name: columns_of(Batch)[name].filled(1, columns_of(Batch)[name].fill)
    for name in ("top_n_sigmas", "top_ks", "top_ps", "min_ps", "typical_ps", "xtc_probabilities")
}
"""The entry of an unfiltered row in each column that requests a filter."""


def asks_for_filters(batch: Batch) -> bool:
    """True if any row may be filtered; costs next to nothing."""
    columns = ((getattr(batch, name), entry) for name, entry in ASKS_NOTHING.items())
    return any(column and column != entry * batch.num_sampled for column, entry in columns)


def read_numbers(batch: Batch) -> Numbers:
    """Returns the columns of all filters; an omitted column has its fill value everywhere."""
    numbers: dict[str, np.ndarray] = {}
    for name in (name for each in FILTERS for name in each.columns):
        column, entries = columns_of(Batch)[name], getattr(batch, name)
        numbers[name] = np.frombuffer(entries or column.filled(batch.num_sampled, column.fill), column.typecode)
    return numbers


def plan_filters(numbers: Numbers, used: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the columns of the filters for `rows` (indices into S): each filter's places in `rows`, and its numbers.

    `used` has the result of `is_used`, by filter.
    """
    columns: dict[str, np.ndarray] = {}
    for each in FILTERS:
        places = np.flatnonzero(used[each.name][rows])
        columns[f"{each.name}_places"] = places
        of_rows = each.prepare(*(numbers[name][rows[places]] for name in each.columns))
        columns |= {f"{each.name}_{name}": values for name, values in zip(each.columns, of_rows, strict=True)}
    return columns


def plan_one_read(numbers: Numbers, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the numbers of the filters of `draw_filtered` for each of `rows`."""
    columns: dict[str, np.ndarray] = {}
    for each in (each for each in FILTERS if each.name in ONE_READ):
        of_rows = each.prepare(*(numbers[name][rows] for name in each.columns))
        columns |= {f"one_read_{name}": values for name, values in zip(each.columns, of_rows, strict=True)}
    return columns


def filter_scores(
    scores_NV: Tensor, columns: Mapping[str, Tensor], planned: Mapping[str, np.ndarray] | None = None, first: int = 0
) -> None:
    """Removes tokens from the rows, in place; `columns` come from `plan_filters`.

    With `first`, the rows begin with this one, and `planned` has the columns on the host.
    """
    for each in FILTERS:
        places, numbers = columns[f"{each.name}_places"], [columns[f"{each.name}_{name}"] for name in each.columns]
        if first and planned is not None:
            num_before = int(np.searchsorted(planned[f"{each.name}_places"], first))
            places, numbers = places[num_before:] - first, [column[num_before:] for column in numbers]
        if len(places) == len(scores_NV):
            each.change(scores_NV, *numbers)
        elif len(places):
            some_NV = scores_NV.index_select(0, places)
            each.change(some_NV, *numbers)
            scores_NV.index_copy_(0, places, some_NV)
