"""Counters of processes that may be replaced: a successor counts from 0 again, the sum over all of them does not."""

from collections.abc import Iterable, Mapping

from messages.control import ProcessStatus
from messages.histograms import BOUNDS, HistogramCounts

COUNTERS = ("steps", "preemptions", "prompt_tokens", "prefix_hit_tokens")
"""The scheduler's gauges that only grow."""


class Totals:
    """Sums values over the incarnations of each process, as far as they were told before each one's end."""

    def __init__(self) -> None:
        self._incarnations: dict[str, int] = {}
        self._latest: dict[str, dict[str, float]] = {}
        self._before: dict[str, dict[str, float]] = {}

    def update(self, name: str, incarnation: int, values: Mapping[str, float]) -> None:
        """Takes what process `name` has counted since its start; a value that is not given stays as it was."""
        latest = self._latest.setdefault(name, {})
        if self._incarnations.get(name, incarnation) != incarnation:
            before = self._before.setdefault(name, {})
            for key, value in latest.items():
                before[key] = before.get(key, 0.0) + value
            latest.clear()
        self._incarnations[name] = incarnation
        latest.update(values)

    def total(self, name: str, key: str) -> float:
        """Returns the sum over all incarnations; 0 for what was never told."""
        return self._before.get(name, {}).get(key, 0.0) + self._latest.get(name, {}).get(key, 0.0)


class ProcessTotals:
    """The totals of what processes report in their beats: counters among the gauges, and histograms."""

    def __init__(self) -> None:
        self._totals = Totals()

    def update(self, statuses: Iterable[ProcessStatus]) -> None:
        """Call it after each process table."""
        for status in statuses:
            values = {key: status.gauges[key] for key in COUNTERS if key in status.gauges}
            for name, histogram in status.histograms.items():
                values |= _flat(name, histogram)
            self._totals.update(status.name, status.incarnation, values)

    def counter(self, process: str, key: str) -> float:
        return self._totals.total(process, key)

    def histogram(self, process: str, name: str) -> HistogramCounts:
        """Returns the histogram `name` of `messages/histograms.py` over all incarnations."""
        counts = [int(self._totals.total(process, f"{name}/{index}")) for index in range(len(BOUNDS[name]) + 1)]
        return HistogramCounts(tuple(counts), self._totals.total(process, f"{name}/total"))


def _flat(name: str, histogram: HistogramCounts) -> dict[str, float]:
    values: dict[str, float] = {f"{name}/{index}": count for index, count in enumerate(histogram.counts)}
    values[f"{name}/total"] = histogram.total
    return values
