"""When steps ended whose tokens came here: written once a step, whatever the number of its rows."""

from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from statistics import median

NUM_STEPS = 65_536
MAX_POINTS = 256
"""Times that are kept of one request's decoding."""


class StepLog:
    """The latest steps, at least `NUM_STEPS` where there have been so many. A row that decodes is in every step."""

    def __init__(self) -> None:
        self._ends_ns = array("q")

    def __len__(self) -> int:
        return len(self._ends_ns)

    def add(self, end_ns: int) -> None:
        """Adds a step, which must have ended after all before it."""
        ends_ns = self._ends_ns
        if len(ends_ns) >= 2 * NUM_STEPS:
            del ends_ns[:NUM_STEPS]
        ends_ns.append(end_ns)

    def median_interval_ns(self, begin_ns: int, end_ns: int) -> int:
        """Returns the median time between the latest steps that ended in this time; 0 where there are not two."""
        ends_ns = self._ends_ns
        stop = bisect_right(ends_ns, end_ns)
        latest = ends_ns[max(bisect_left(ends_ns, begin_ns), stop - MAX_POINTS) : stop]
        return round(median(after - before for before, after in pairwise(latest))) if len(latest) > 1 else 0

    def count_after(self, begin_ns: int) -> int:
        """Returns how many steps have ended later than that."""
        return len(self._ends_ns) - bisect_right(self._ends_ns, begin_ns)

    def between(self, begin_ns: int, end_ns: int, max_points: int = MAX_POINTS) -> tuple[int, ...]:
        """Returns when steps ended from `begin_ns` to `end_ns`, both inclusive: all or, of more than `max_points`, the
        first, every n-th and the last."""
        ends_ns = self._ends_ns
        first, stop = bisect_left(ends_ns, begin_ns), bisect_right(ends_ns, end_ns)
        stride = -(-(stop - first) // max_points) or 1
        points = tuple(ends_ns[first:stop:stride])
        return (*points, ends_ns[stop - 1]) if points and points[-1] != ends_ns[stop - 1] else points
