"""Counts values into the buckets of a distribution."""

from bisect import bisect_left

from messages.control.histograms import BOUNDS, HistogramCounts


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
