"""Facts about a plan for timelines: what requests wait for, and which ones were preempted or paused."""

import time
from collections import deque

from messages.ring.timeline import DelayedRow, PausedRow, PreemptedRow, WaitsFor

NUM_MEASURED = 32
"""The number of latest admissions that determine their rate."""


class PlanNotes:
    """Facts about the plan made at `planned_ns`. `delayed` are prompts without a chunk.

    `waits_for` is why the first request of the queue is not admitted. If it waits for pages, it needs
    `num_needed_pages`, in addition to the `num_promised_pages` that running rows are still to get.
    """

    def __init__(self) -> None:
        self.planned_ns = time.monotonic_ns()
        self.delayed: list[DelayedRow] = []
        self.preempted: list[PreemptedRow] = []
        self.paused: list[PausedRow] = []
        """Rows that were paused or resumed."""
        self.waits_for: WaitsFor | None = None
        self.num_needed_pages = 0
        self.num_promised_pages = 0
        self.num_step_tokens = 0
        """Tokens of all rows of the step."""


class AdmissionRate:
    """The rate at which requests leave the queue. Requests that get a free row at once do not count."""

    def __init__(self) -> None:
        self._begin_ns = 0
        """When the queue last became non-empty, 0 while it is empty."""
        self._latest_ns: deque[int] = deque(maxlen=NUM_MEASURED)

    def record_plan(self, num_waiting: int, now_ns: int) -> None:
        """Call it after each plan, with the number of requests left in the queue."""
        if not num_waiting:
            self._begin_ns = 0
            self._latest_ns.clear()
        elif not self._begin_ns:
            self._begin_ns = now_ns

    def record(self, now_ns: int) -> None:
        """Counts an admitted request."""
        if self._begin_ns:
            self._latest_ns.append(now_ns)

    def per_s(self, now_ns: int) -> float:
        """Returns the rate of the latest admissions up to now, so that it falls without any; 0 before the first."""
        num_admitted = len(self._latest_ns)
        if not num_admitted:
            return 0.0
        if num_admitted == NUM_MEASURED:
            num_admitted, begin_ns = num_admitted - 1, self._latest_ns[0]
        else:
            begin_ns = self._begin_ns
        return num_admitted * 1e9 / max(now_ns - begin_ns, 1_000_000)
