"""How many lines of batches are answered at once: as many as the requests of clients do not feel."""

import asyncio
import math
import time

from extras.batches.config import BatchConfig
from frontend.http.in_process import InProcessCall
from frontend.links.processes import ProcessView
from frontend.requests.registry import Registry
from messages.config.server import Config

PART_WHILE_IDLE = 2
"""Batches get 1/PART_WHILE_IDLE of the rows while no client has requests open. The rest stays free for new
requests; the scheduler then pauses the rows of batches."""

QUIET_S = 2.0
"""The server counts as idle after this long without requests; a client's pauses between requests are shorter."""


class Gate:
    """Lets a call pass where the rows of batches are below their bound, one after the other.

    A line with several choices has as many rows, and may pass the bound with them. `look` is to be called once a
    second: the requests of other frontends are known from their beats.
    """

    def __init__(self, config: Config, registry: Registry, processes: ProcessView, uid_block: int):
        num_rows = config.scheduling.max_num_seqs
        provided = config.scheduling.max_batch_seqs
        part = 1 if BatchConfig.of(config).batch_run else PART_WHILE_IDLE
        self._max_idle = provided or max(1, num_rows // part)
        self._max_live = config.scheduling.rows_while_live()
        self._live_s = -math.inf
        """When a client's request was last seen open."""
        self._registry = registry
        self._processes = processes
        self._uid_block = uid_block
        self._calls: set[InProcessCall] = set()
        self._changed = asyncio.Event()
        self._entering = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def look(self) -> None:
        self._changed.set()

    @property
    def num_free(self) -> int:
        """Rows that batches may still have, less than 1 if they have to wait."""
        num_own = sum(call.num_open for call in self._calls)
        num_rows = sum(max(1, call.num_open) for call in self._calls)
        others = self._processes.other_fronts(self._uid_block)
        num_live = len(self._registry) - num_own + sum(status.gauges.get("requests", 0) for status in others)
        now_s = time.monotonic()
        if num_live > 0:
            self._live_s = now_s
        is_quiet = num_live <= 0 and now_s - self._live_s >= QUIET_S
        return (self._max_idle if is_quiet else self._max_live) - num_rows

    async def enter(self, call: InProcessCall) -> None:
        """Returns when `call` may be made; `leave` must follow."""
        async with self._entering:  # first come, first served
            while self.num_free < 1:
                self._changed.clear()
                await self._changed.wait()
            self._calls.add(call)

    def leave(self, call: InProcessCall) -> None:
        self._calls.discard(call)
        self.look()
