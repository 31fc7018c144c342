"""The end times of steps whose tokens arrived here: one entry per step, regardless of the number of rows."""

from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from statistics import median

NUM_STEPS = 65_536
MAX_POINTS = 256
"""Maximum end times that are kept per request."""


class StepLog:
    """The latest steps, at least `NUM_STEPS` once there were that many. A decoding row is in every step."""

    def __init__(self) -> None:
        self._ends_ns = array("q")

    def __len__(self) -> int:
        return len(self._ends_ns)

    def add(self, end_ns: int) -> None:
        """Adds a step; it must have ended after all earlier ones."""
        ends_ns = self._ends_ns
        if len(ends_ns) >= 2 * NUM_STEPS:
            del ends_ns[:NUM_STEPS]
        ends_ns.append(end_ns)

    def median_interval_ns(self, begin_ns: int, end_ns: int) -> int:
        """Returns the median interval between the latest steps of this period; 0 for fewer than two steps."""
        ends_ns = self._ends_ns
        stop = bisect_right(ends_ns, end_ns)
        latest = ends_ns[max(bisect_left(ends_ns, begin_ns), stop - MAX_POINTS) : stop]
        return round(median(after - before for before, after in pairwise(latest))) if len(latest) > 1 else 0

    def count_after(self, begin_ns: int) -> int:
        """Returns the number of steps that ended later than `begin_ns`."""
        return len(self._ends_ns) - bisect_right(self._ends_ns, begin_ns)

    def between(self, begin_ns: int, end_ns: int, max_points: int = MAX_POINTS) -> tuple[int, ...]:
        """Returns the end times from `begin_ns` to `end_ns`, both inclusive.

        If there are more than `max_points`, returns the first, every n-th and the last.
        """
        ends_ns = self._ends_ns
        first, stop = bisect_left(ends_ns, begin_ns), bisect_right(ends_ns, end_ns)
        stride = -(-(stop - first) // max_points) or 1
        points = tuple(ends_ns[first:stop:stride])
        return (*points, ends_ns[stop - 1]) if points and points[-1] != ends_ns[stop - 1] else points
