"""The one admission limit: whether a request may enter now, and when a refused client should come back."""

import math
import time
from collections import deque

from frontend.errors import UnavailableError
from frontend.processes import ProcessView
from messages.config import SchedulingConfig

NUM_MEASURED = 32
"""Latest endings from which the completion rate is taken."""

MAX_RETRY_S = 60


class Admission:
    """At most `max_num_seqs` running and `max_queued_requests` waiting requests are open, none while draining."""

    def __init__(self, scheduling: SchedulingConfig, processes: ProcessView):
        self._num_rows = scheduling.max_num_seqs
        self._limit = scheduling.max_num_seqs + scheduling.max_queued_requests
        self._processes = processes
        self._ended_s: deque[float] = deque(maxlen=NUM_MEASURED)
        self.is_draining = False

    def check_open(self) -> None:
        """Raises `UnavailableError` while the server takes no requests at all."""
        if self.is_draining:
            raise UnavailableError("the server is draining and takes no new requests", "draining")
        self._processes.check_ready()

    def check(self, num_open: int) -> None:
        """Raises `UnavailableError` where one request more than `num_open` may not enter."""
        self.check_open()
        if num_open >= self._limit:
            raise UnavailableError(
                f"the server is full: {num_open} requests are open (--max-num-seqs and --max-queued-requests)",
                "queue_full",
                self.retry_after_s(num_open),
            )

    def note_end(self) -> None:
        """Counts a request that has ended."""
        self._ended_s.append(time.monotonic())

    def retry_after_s(self, num_open: int) -> int:
        """Returns in how many seconds what waits now will have got a row, at the rate of the latest endings."""
        if len(self._ended_s) < 2:
            return 1
        span_s = max(time.monotonic() - self._ended_s[0], 1e-3)
        rate = (len(self._ended_s) - 1) / span_s
        return min(max(1, math.ceil((num_open - self._num_rows) / rate)), MAX_RETRY_S)
