"""A histogram that a process fills and reports."""

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
        """Returns the counts since the process started."""
        return HistogramCounts(tuple(self._counts), self._total)
