"""The offset of the head's monotonic clock from this machine's: each counts from its own start.

As in Cristian's algorithm (1989), the answer with the shortest round trip counts; the error is at most half of that.
"""

from extras.remote.messages import ClockAnswer

NUM_QUESTIONS = 8


class ClockComparison:
    """Asks one question after another. Times are `time.monotonic_ns()`."""

    def __init__(self) -> None:
        self._num_answers = 0
        self._best_trip_ns = -1
        self._ahead_ns = 0

    @property
    def is_over(self) -> bool:
        return self._num_answers == NUM_QUESTIONS

    @property
    def ahead_ns(self) -> int:
        """How far the head's clock is ahead; 0 if the measurements allow that it is the same clock."""
        return self._ahead_ns if abs(self._ahead_ns) > self._best_trip_ns / 2 else 0

    def record(self, answer: ClockAnswer, now_ns: int) -> None:
        """Records the answer that arrived at `now_ns`."""
        trip_ns = now_ns - answer.asked_ns
        if self._best_trip_ns < 0 or trip_ns < self._best_trip_ns:
            self._best_trip_ns = trip_ns
            self._ahead_ns = answer.head_ns - answer.asked_ns - trip_ns // 2
        self._num_answers += 1
