"""What takes tokens out before one is drawn: which rows of a step each filter is for, and with which numbers.

Shape legend: S rows that sample, N some of them, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from kernels.filter_scores import filter_min_p, filter_top
from messages.axes import columns_of
from messages.steps import Batch

ALL_TOKENS = (1 << 31) - 1
"""A top-k that takes nothing out."""

Numbers = Mapping[str, np.ndarray]
"""Columns of `Batch` by name, [S]."""


def has_top(numbers: Numbers, vocab_size: int) -> np.ndarray:
    top_ks = numbers["top_ks"]
    return ((top_ks > 0) & (top_ks < vocab_size)) | (numbers["top_ps"] < 1)


def top_numbers(top_ks: np.ndarray, top_ps: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.where(top_ks > 0, top_ks, ALL_TOKENS).astype(np.int64), top_ps


class Filter(NamedTuple):
    """`columns` of `Batch` hold its numbers; `is_used` says of which rows (bool [S]) they take a token out.

    `change` filters scores_NV, logits by their temperature, in place; after them it gets what `prepare` makes of the
    columns' entries for these rows, on their device.
    """

    name: str
    columns: tuple[str, ...]
    is_used: Callable[[Numbers, int], np.ndarray]
    change: Callable[..., None]
    prepare: Callable[..., tuple[np.ndarray, ...]] = lambda *numbers: numbers


FILTERS = (
    Filter("top", ("top_ks", "top_ps"), has_top, filter_top, top_numbers),
    Filter("min_p", ("min_ps",), lambda numbers, vocab_size: numbers["min_ps"] > 0, filter_min_p),
)
"""In the order in which they are applied, that of transformers."""


def read_numbers(batch: Batch) -> Numbers:
    """Returns the columns of all filters; one that is left out has its fill value everywhere."""
    numbers: dict[str, np.ndarray] = {}
    for name in (name for each in FILTERS for name in each.columns):
        column, entries = columns_of(Batch)[name], getattr(batch, name)
        numbers[name] = np.frombuffer(entries or column.filled(batch.num_sampled, column.fill), column.typecode)
    return numbers


def plan_filters(numbers: Numbers, used: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the columns of the filters for `rows` (indices into S): for each filter the numbers of all of them, and
    the places of those it is used for. `used` is what `is_used` says, by filter."""
    columns: dict[str, np.ndarray] = {}
    for each in FILTERS:
        columns[f"special_{each.name}_places"] = np.flatnonzero(used[each.name][rows])
        of_rows = each.prepare(*(numbers[name][rows] for name in each.columns))
        columns |= {f"special_{name}": values for name, values in zip(each.columns, of_rows, strict=True)}
    return columns


def filter_scores(scores_NV: Tensor, columns: Mapping[str, Tensor], first: int = 0) -> None:
    """Takes tokens out of the rows, in place; `columns` are those of `plan_filters` for them and `first` rows before.

    With rows before, which they do not say the places without, every filter gets all rows.
    """
    for each in FILTERS:
        places, numbers = columns[f"special_{each.name}_places"], [columns[f"special_{name}"] for name in each.columns]
        if len(places) == len(scores_NV) or first:
            each.change(scores_NV, *(column[first:] for column in numbers))
        elif len(places):
            some_NV = scores_NV.index_select(0, places)
            each.change(some_NV, *(column.index_select(0, places) for column in numbers))
            scores_NV.index_copy_(0, places, some_NV)
