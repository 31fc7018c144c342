"""Histograms of values, as `/metrics` shows them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Family = type[GaugeMetricFamily] | type[CounterMetricFamily]

Buckets = list[tuple[str, float]]
"""A Prometheus histogram: pairs of an upper bound and the count of values up to it; the last bound is "+Inf"."""


class Distribution:
    """Counts values into buckets with the upper bounds `bounds`, inclusive and ascending."""

    def __init__(self, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def add(self, value: float, num_times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += num_times
        self.total += value * num_times

    def buckets(self) -> Buckets:
        return make_buckets(self._bounds, self._counts)


def make_buckets(bounds: Sequence[float], counts: Sequence[int]) -> Buckets:
    """Returns `counts` (one more than `bounds`) as cumulative buckets."""
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))


def make_metric(make: Family, name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """Returns a metric with a sample for each combination of label values."""
    family = make(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def one_two_five(limit: int) -> tuple[int, ...]:
    """Returns 1, 2, 5, 10, 20, … up to the first number that is at least `limit`: bounds for token counts."""
    bounds: list[int] = []
    scale = 1
    while not bounds or bounds[-1] < limit:
        bounds += [scale, 2 * scale, 5 * scale]
        scale *= 10
    while len(bounds) > 1 and bounds[-2] >= limit:
        bounds.pop()
    return tuple(bounds)
