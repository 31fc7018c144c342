"""Distributions that a process counts and the frontend shows: their names, their buckets and the counting."""

from bisect import bisect_left

import msgspec

BOUNDS: dict[str, tuple[float, ...]] = {
    "step_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    "step_rows": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "step_tokens": (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
}
"""Upper bounds of the buckets by name, inclusive; above the last there is one more bucket."""


class HistogramCounts(msgspec.Struct, frozen=True, array_like=True):
    """`counts` has one entry a bucket (not cumulative); `total` is the sum of all values."""

    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts values into the buckets of `BOUNDS[name]`."""

    def __init__(self, name: str):
        self._bounds = BOUNDS[name]
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def counts(self) -> HistogramCounts:
        """Returns what has been counted since the process started."""
        return HistogramCounts(tuple(self._counts), self._total)
