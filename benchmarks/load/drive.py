"""Sends planned requests in a closed loop or at their times, with a limit on number and duration."""

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field

import uvloop

from benchmarks.load.answer import UNREACHABLE, StreamResult
from benchmarks.load.connection import ConnectionPool, Target
from benchmarks.load.workloads import PlannedRequest, SamplingFields

MAX_CONNECT_FAILURES = 10
"""Failed connections in a row after which the server counts as gone and the run ends."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a run. After `max_seconds` no request begins; those that run may end within their own time limit."""

    num_requests: int
    max_seconds: float


@dataclass(slots=True)
class Measurement:
    """The outcome of a run so far; `results` includes requests that have not ended."""

    results: list[StreamResult] = field(default_factory=list)
    seconds: float = 0.0
    client_cpu_s: float = 0.0
    is_cut_off: bool = False


class Load:
    """Drives one server. `measurement` stays what it was when Ctrl-C cuts a loop off; `on_end` sees each result."""

    def __init__(self, target: Target, sampling: SamplingFields, limits: Limits):
        self.measurement = Measurement()
        self.on_end: Callable[[StreamResult], object] = lambda result: None
        self._pool = ConnectionPool(target)
        self._sampling = sampling
        self._limits = limits
        self._running: asyncio.Task[None] | None = None
        self._num_connect_failures = 0

    async def closed_loop(self, requests: Iterable[PlannedRequest], concurrency: int) -> None:
        """Keeps `concurrency` requests running: the next begins when one has ended."""
        queue = itertools.islice(requests, self._limits.num_requests)
        await self._measured(self._take_turns(queue, concurrency))

    async def open_loop(self, requests: Iterable[PlannedRequest]) -> None:
        """Sends each request at its time, whatever else runs."""
        await self._measured(self._follow_clock(itertools.islice(requests, self._limits.num_requests)))

    def cut_off(self) -> None:
        """Ends the running loop now; requests that have not ended stay in the measurement as unfinished."""
        if self._running is not None:
            self.measurement.is_cut_off = True
            self._running.cancel()

    async def _take_turns(self, queue: Iterator[PlannedRequest], concurrency: int) -> None:
        deadline_s = time.monotonic() + self._limits.max_seconds

        async def worker() -> None:
            for planned in queue:
                await self._send(planned)
                if time.monotonic() >= deadline_s or self._is_server_gone():
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())

    async def _follow_clock(self, queue: Iterator[PlannedRequest]) -> None:
        begin_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for planned in queue:
                if planned.at_s >= self._limits.max_seconds or self._is_server_gone():
                    return
                due_s = begin_s + planned.at_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                group.create_task(self._send(planned, late_s=max(0.0, time.monotonic() - due_s)))

    async def _measured(self, loop: Coroutine[None, None, None]) -> None:
        begin_s, begin_cpu_s = time.monotonic(), time.process_time()
        self._running = asyncio.create_task(loop)
        try:
            await self._running
        except asyncio.CancelledError:
            if not self.measurement.is_cut_off:
                raise
        finally:
            self._pool.close()
            self.measurement.seconds = time.monotonic() - begin_s
            self.measurement.client_cpu_s = time.process_time() - begin_cpu_s

    async def _send(self, planned: PlannedRequest, late_s: float = 0.0) -> None:
        body = self._sampling.body(planned)
        result = StreamResult(late_s=late_s)
        self.measurement.results.append(result)
        await self._pool.stream(body, result)
        self._num_connect_failures = self._num_connect_failures + 1 if result.outcome == UNREACHABLE else 0
        self.on_end(result)

    def _is_server_gone(self) -> bool:
        return self._num_connect_failures >= MAX_CONNECT_FAILURES


def run_interruptible(load: Load, loop: Coroutine[None, None, None]) -> None:
    """Runs one of the load's loops to its end; Ctrl-C cuts it off, and what has been measured stays."""

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, load.cut_off)
        await loop

    uvloop.run(run())
