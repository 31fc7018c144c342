"""The run of one input file: each line that has no result is asked, and its result written."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from extras.batches.gate import Gate
from extras.batches.lines import BatchLine, numbered_lines, read_line
from extras.batches.results import DISK_FULL, LineFailure, Results
from frontend.http.endpoint import Endpoint
from frontend.http.in_process import InProcessCall, Reply
from frontend.requests.client import INTERNAL, Client
from frontend.requests.trace import RequestTrace

T = TypeVar("T")

SYNC_S = 1.0
"""The maximum age of unsynced results. A power cut may lose these; their lines are then run again."""

RETRY_S = 1.0
"""After a 503 or a 429: the server is full, a process of it is away, or the key has reached a limit."""

LINES_AT_ONCE, BYTES_AT_ONCE = 256, 2**20
"""How far to read ahead of the lines being run; one line may exceed the bound."""

log = logging.getLogger("sluice.frontend")


@dataclass(frozen=True)
class LineCaller:
    """Asks lines at `endpoints`, as many at once as `gate` lets pass."""

    endpoints: Mapping[str, Endpoint]
    gate: Gate
    on_response: Callable[[RequestTrace], None]
    max_line_bytes: int
    unwritten: set[InProcessCall] = field(default_factory=set[InProcessCall])
    """Calls whose results wait for room on the disk."""

    async def begin(self, line: BatchLine, timeout_s: float | None, client: Client = INTERNAL) -> InProcessCall:
        """Returns when the line may be asked. The call must leave the gate when it is over."""
        call = InProcessCall(self.endpoints[line.url], line.request_body(timeout_s), self.on_response, client)
        await self.gate.enter(call)
        return call

    def gauges(self) -> dict[str, float]:
        return {"batch_lines": len(self.gate), "batch_results_unwritten": len(self.unwritten)}


@dataclass(frozen=True)
class LineRun:
    """Answers the lines of `path`, which have been checked. `on_sync` is called in a thread when results are on disk.

    A line without a timeout of its own gets `timeout_s`, if there is one.
    """

    path: Path
    results: Results
    caller: LineCaller
    on_sync: Callable[[], None]
    timeout_s: float | None
    client: Client = INTERNAL

    def _next_lines(self, numbered: Iterator[tuple[int, bytes]]) -> list[BatchLine] | None:
        """Reads the next lines from the disk and returns those that have no result; `None` at the end of the file."""
        caller, found, num_bytes = self.caller, list[BatchLine](), 0
        for number, raw in numbered:
            if raw:
                line = read_line(raw, caller.endpoints, caller.max_line_bytes)
                if line.custom_id not in self.results.answered:
                    found.append(line)
                    num_bytes += len(raw)
            if num_bytes > BYTES_AT_ONCE or number % LINES_AT_ONCE == 0:
                return found
        return found or None

    async def run(self) -> None:
        """Returns when every line has a result. Cancelled, it ends what is open. Raises an `ExceptionGroup`."""
        async with asyncio.TaskGroup() as outer:
            syncing = outer.create_task(self._keep_synced())
            async with asyncio.TaskGroup() as answering:
                numbered = numbered_lines(self.path, self.caller.max_line_bytes)
                while (lines := await run_whole(partial(self._next_lines, numbered))) is not None:
                    for line in lines:
                        call = await self.caller.begin(line, self.timeout_s, self.client)
                        task = answering.create_task(self._answer(line.custom_id, call))
                        task.add_done_callback(lambda _, call=call: self.caller.gate.leave(call))
            syncing.cancel()

    async def _answer(self, custom_id: str, call: InProcessCall) -> None:
        while (reply := await call.run()).status in (429, 503):
            await asyncio.sleep(RETRY_S)
        try:
            while not self._has_added(custom_id, reply, call):
                await asyncio.sleep(RETRY_S)
        finally:
            self.caller.unwritten.discard(call)

    def _has_added(self, custom_id: str, reply: Reply, call: InProcessCall) -> bool:
        """Writes a result; False if the disk is full. The call then keeps its row, so that no further call begins."""
        try:
            self.results.add(custom_id, reply)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            if not self.caller.unwritten:
                log.error("%s: %s; the batch waits until there is room for its results", self.path, error.strerror)
            self.caller.unwritten.add(call)
            return False
        return True

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            if not self.results.is_synced:
                await run_whole(self._sync)

    def _sync(self) -> None:
        try:
            self.results.sync()
            self.on_sync()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self.results.is_synced = False

    def refuse_rest(self, failure: LineFailure) -> None:
        """Writes `failure` as the result of each line that has none. Reads and writes the disk."""
        numbered = numbered_lines(self.path, self.caller.max_line_bytes)
        while (lines := self._next_lines(numbered)) is not None:
            for line in lines:
                self.results.add(line.custom_id, failure)


async def run_whole(function: Callable[[], T]) -> T:
    """Runs `function` in a thread to its end: a cancellation takes effect afterwards, so that nothing writes later."""
    task = asyncio.create_task(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
