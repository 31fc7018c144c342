"""Limits the total memory of all request bodies, from their arrival to the end of their requests."""

import asyncio
from collections.abc import Callable

from frontend.errors import UnavailableError

FREE_BYTES = 1 << 16
"""Not counted for each body, so that large requests never shut small ones out."""

BRIEF_S = 0.01
"""Processing time of a body that needs no pause after it."""


class BodyBudget:
    """Holds at most `limit_bytes`. `on_refusal` is called with the 503 for a body beyond that."""

    def __init__(self, limit_bytes: int, on_refusal: Callable[[UnavailableError], object]):
        self._limit_bytes = limit_bytes
        self._on_refusal = on_refusal
        self.num_bytes = 0
        self._turn = asyncio.Lock()
        self._next_s = 0.0

    async def take_turn(self) -> None:
        """Waits until a large body may be processed: one at a time, each followed by a pause as long as its processing.

        Processing blocks the event loop for a moment; the pauses let small requests, which need several turns, run.
        """
        loop = asyncio.get_running_loop()
        await self._turn.acquire()
        try:
            await asyncio.sleep(self._next_s - loop.time())
        except BaseException:
            self._turn.release()
            raise
        loop.call_soon(self._end_turn, loop, loop.time())  # runs when the caller has done what it does at once

    def _end_turn(self, loop: asyncio.AbstractEventLoop, begun_s: float) -> None:
        end_s = loop.time()
        if end_s - begun_s > BRIEF_S:
            self._next_s = end_s + (end_s - begun_s)
        self._turn.release()

    def reserve(self, num_bytes: int) -> None:
        """Raises `UnavailableError` if there is no room."""
        if self.num_bytes + num_bytes > self._limit_bytes:
            error = UnavailableError(
                f"the bodies of other requests fill the memory that is left for them, {self._limit_bytes} bytes "
                "(16 times --max-body-mb): try again later, or send a smaller body",
                "queue_full",
            )
            self._on_refusal(error)
            raise error
        self.num_bytes += num_bytes


class HeldBody:
    """One request's share of a budget, if there is one."""

    def __init__(self, budget: BodyBudget | None = None):
        self._budget = budget
        self._num_bytes = 0
        self._num_reserved = 0

    def grow(self, num_bytes: int) -> None:
        """Adds bytes that have arrived. Raises `UnavailableError` if there is no room for them."""
        self._num_bytes += num_bytes
        num_missing = self._num_bytes - FREE_BYTES - self._num_reserved
        if self._budget is not None and num_missing > 0:
            self._budget.reserve(num_missing)
            self._num_reserved += num_missing

    async def take_turn(self) -> None:
        """Waits until the body, which is complete now, may be processed."""
        if self._budget is not None and self._num_reserved > 0:
            await self._budget.take_turn()

    def release(self) -> None:
        """Returns the request's share to the budget; idempotent."""
        if self._budget is not None:
            self._budget.num_bytes -= self._num_reserved
        self._budget, self._num_reserved = None, 0
