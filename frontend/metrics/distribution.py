"""Distributions of values in buckets, counted here and shown by `/metrics`."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

Buckets = list[tuple[str, float]]
"""(upper bound, values up to it) of a histogram as Prometheus has it, the last bound "+Inf"."""


class Distribution:
    """Counts values into buckets with the upper bounds `bounds`, inclusive and ascending."""

    def __init__(self, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def add(self, value: float, num_times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += num_times
        self.total += value * num_times

    def buckets(self) -> Buckets:
        return make_buckets(self._bounds, self._counts)


def make_buckets(bounds: Sequence[float], counts: Sequence[int]) -> Buckets:
    """Returns `counts` (one more than `bounds`) as cumulative buckets."""
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))


def one_two_five(limit: int) -> tuple[int, ...]:
    """Returns 1, 2, 5, 10, 20, … up to the first that is at least `limit`: bounds for counts of tokens."""
    bounds: list[int] = []
    scale = 1
    while not bounds or bounds[-1] < limit:
        bounds += [scale, 2 * scale, 5 * scale]
        scale *= 10
    while len(bounds) > 1 and bounds[-2] >= limit:
        bounds.pop()
    return tuple(bounds)
