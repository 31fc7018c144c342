"""The sampling parameters of rows as columns."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

from messages.ring.axes import Column, columns_of
from messages.ring.steps import SAMPLED, Batch
from scheduler_proc.deciding.requests import PendingReq

VALUES: dict[str, Callable[[PendingReq], float]] = {
    "temperatures": lambda pending: 0.0 if pending.sampling_params.is_greedy else pending.sampling_params.temperature,
    "top_ps": lambda pending: pending.sampling_params.top_p,
    "top_ks": lambda pending: pending.sampling_params.top_k,
    "min_ps": lambda pending: pending.sampling_params.min_p,
    "seeds": lambda pending: pending.sampling_params.seed,
    "num_logprobs": lambda pending: pending.num_logprobs,
    "top_n_sigmas": lambda pending: pending.sampling_params.top_n_sigma,
    "typical_ps": lambda pending: pending.sampling_params.typical_p,
    "xtc_probabilities": lambda pending: pending.sampling_params.xtc_probability,
    "xtc_thresholds": lambda pending: pending.sampling_params.xtc_threshold,
}
"""A request's value in each column of sampling parameters in `Batch`."""

COLUMNS: dict[str, Column] = {name: columns_of(Batch)[name] for name in VALUES}
REQUIRED = [name for name, column in COLUMNS.items() if not column.is_optional]
PLACES = {"sample_tokens", "sample_positions"}
"""The columns of sampled tokens that differ in each step."""

assert {name for name, column in columns_of(Batch).items() if column.axis is SAMPLED} == VALUES.keys() | PLACES


class SamplingColumns:
    """The columns of `VALUES`, one entry per row, and counts of rows with optional values, processing and grammars."""

    def __init__(self) -> None:
        self.columns: dict[str, array[Any]] = {name: array(column.typecode) for name, column in COLUMNS.items()}
        self.num_set = {name: 0 for name, column in COLUMNS.items() if column.is_optional}
        self.num_that_change_logits = 0
        self.num_with_grammar = 0
        self._packed: dict[str, bytes] | None = None
        """The result of `pack`, until rows are added or removed."""

    @property
    def num_logprobs(self) -> "array[int]":
        return self.columns["num_logprobs"]

    def copy(self) -> "SamplingColumns":
        """Returns a copy that can be changed independently."""
        copied = SamplingColumns()
        copied.columns = {name: column[:] for name, column in self.columns.items()}
        copied.num_set, copied.num_that_change_logits = self.num_set.copy(), self.num_that_change_logits
        copied.num_with_grammar = self.num_with_grammar
        return copied

    def kept(self, is_kept: Sequence[bool], pendings: Sequence[PendingReq]) -> "SamplingColumns":
        """Returns the columns of the rows for which `is_kept` is true, whose requests are `pendings`."""
        kept = SamplingColumns()
        for name, column in self.columns.items():
            kept.columns[name].extend(compress(column, is_kept))
        for pending in pendings:
            kept._count(pending, 1)
        return kept

    def append(self, pending: PendingReq, num_tokens: int = 1) -> None:
        """Adds `num_tokens` entries of this request."""
        for name, value in VALUES.items():
            self.columns[name].extend([value(pending)] * num_tokens)
        self._count(pending, num_tokens)
        self._packed = None

    def delete(self, row: int, pending: PendingReq) -> None:
        """Removes the row of this request."""
        for column in self.columns.values():
            del column[row]
        self._count(pending, -1)
        self._packed = None

    def pack(self) -> dict[str, bytes]:
        """Returns the columns by their names in `Batch`, cached while the rows stay the same."""
        if self._packed is None:
            self._packed = self.joined(SamplingColumns())
        return self._packed

    def with_runs(self, runs: Sequence[tuple[PendingReq, int]]) -> dict[str, bytes]:
        """Returns the columns of these rows followed by `runs`, requests with their numbers of entries, by name."""
        packed, entries = self.pack(), [(_packed_entry(pending), count) for pending, count in runs]
        if any(self.num_set.values()) or not all(entry for entry, _ in entries):
            others = SamplingColumns()
            for pending, count in runs:
                others.append(pending, count)
            return self.joined(others)
        return {name: b"".join([packed[name], *[entry[name] * count for entry, count in entries]]) for name in REQUIRED}

    def joined(self, other: "SamplingColumns") -> dict[str, bytes]:
        """Returns the columns of these rows followed by the other's, by their names in `Batch`."""
        joined = {name: (column + other.columns[name]).tobytes() for name, column in self.columns.items()}
        for name, count in self.num_set.items():
            if not count and not other.num_set[name]:
                joined[name] = b""
        return joined

    def check(self, pendings: list[PendingReq]) -> None:
        """Asserts that the columns match these requests."""
        expected = SamplingColumns()
        for pending in pendings:
            expected.append(pending)
        assert self.columns == expected.columns, "a row has the sampling parameters of another"
        for name in ("num_set", "num_that_change_logits", "num_with_grammar"):
            assert getattr(self, name) == getattr(expected, name), f"{name} is miscounted"

    def _count(self, pending: PendingReq, step: int) -> None:
        for name in self.num_set:
            if VALUES[name](pending) != COLUMNS[name].fill:
                self.num_set[name] += step
        if pending.changes_logits:
            self.num_that_change_logits += step
            self.num_with_grammar += step * (pending.grammar is not None)


def _packed_entry(pending: PendingReq) -> Mapping[str, bytes]:
    """Returns a request's entry in each required column, or an empty mapping if it also has optional values."""
    if pending.packed_sampling is None:
        columns = SamplingColumns()
        columns.append(pending)
        pending.packed_sampling = {} if any(columns.num_set.values()) else columns.pack()
    return pending.packed_sampling
