"""Graceful shutdown: reports when the last open request has ended, or when the time limit is over."""

import asyncio
from collections.abc import Callable


class DrainWatch:
    """Calls `report` once per `begin`: when `count_open` returns 0, or at the deadline."""

    def __init__(self, count_open: Callable[[], int], report: Callable[[], None]):
        self._count_open = count_open
        self._report = report
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self, timeout_s: float) -> None:
        """Starts watching, or sets a new deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, self._end)
        self.check()

    def check(self) -> None:
        """Call this whenever a request may have ended."""
        if self._deadline is not None and not self._count_open():
            self._end()

    def _end(self) -> None:
        assert self._deadline is not None
        self._deadline.cancel()
        self._deadline = None
        self._report()
