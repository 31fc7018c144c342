"""Deadlines of requests. At its deadline a request ends with its partial output: in the ring, or here if that hangs."""

import asyncio
import logging
import time
from collections.abc import Callable

from frontend.requests.generation import Generation

ANSWER_TIMEOUT_S = 1.0
"""Time that the ring has to end a request after its deadline; only a longer step exceeds it."""

LONGEST_S = 1e7
"""Several months: every event loop's timer supports this."""

log = logging.getLogger("sluice.frontend")


class Deadlines:
    """Calls `abort` at a request's deadline, and `end_here` if the request has not ended `ANSWER_TIMEOUT_S` later."""

    def __init__(self, abort: Callable[[Generation], None], end_here: Callable[[Generation], None]):
        self._abort = abort
        self._end_here = end_here
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def watch(self, generation: Generation, deadline_s: float) -> None:
        """Starts the timer of a request; `deadline_s` is a time of `time.monotonic()`."""
        remaining_s = deadline_s - time.monotonic()
        self._start(generation, min(max(0.0, remaining_s), LONGEST_S), self._expire)

    def forget(self, generation: Generation) -> None:
        """Cancels the timer of a request that has ended. May be called for one without a deadline."""
        timer = self._timers.pop(generation.uid, None)
        if timer is not None:
            timer.cancel()

    def _start(self, generation: Generation, delay_s: float, then: Callable[[Generation], None]) -> None:
        loop = asyncio.get_running_loop()
        self._timers[generation.uid] = loop.call_later(delay_s, then, generation)

    def _expire(self, generation: Generation) -> None:
        self._start(generation, ANSWER_TIMEOUT_S, self._give_up)
        self._abort(generation)

    def _give_up(self, generation: Generation) -> None:
        self.forget(generation)
        log.warning(
            "uid %d id=%s: ended at its deadline, no answer came",
            *(generation.uid, generation.request_id),
            extra=generation.log_extra,
        )
        self._end_here(generation)
