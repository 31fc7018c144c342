"""The run of one input file: each line that has no result is asked, and its result written."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from frontend.batches.gate import Gate
from frontend.batches.lines import BatchLine, numbered_lines, read_line
from frontend.batches.results import LineFailure, Results
from frontend.http.endpoint import Endpoint
from frontend.http.in_process import InProcessCall
from frontend.requests.trace import RequestTrace

T = TypeVar("T")

SYNC_S = 1.0
"""What a power cut may cost: results of so many seconds, whose lines are then asked again."""

RETRY_S = 1.0
"""After a 503: the server is full, or a process of it is away."""

LINES_A_TURN = 100
"""Of those with a result, that are passed over before other tasks get their turn."""


@dataclass(frozen=True)
class LineCaller:
    """Asks lines at `endpoints`, as many at once as `gate` lets pass."""

    endpoints: Mapping[str, Endpoint]
    gate: Gate
    on_response: Callable[[RequestTrace], None]
    max_line_bytes: int

    async def begin(self, line: BatchLine, timeout_s: float | None) -> InProcessCall:
        """Returns when the line may be asked. The call must leave the gate when it is over."""
        call = InProcessCall(self.endpoints[line.url], line.request_body(timeout_s), self.on_response)
        await self.gate.enter(call)
        return call


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

    def _unanswered(self) -> Iterator[BatchLine | None]:
        """Yields the lines to ask, and `None` now and then."""
        caller = self.caller
        for number, raw in numbered_lines(self.path, caller.max_line_bytes):
            line = read_line(raw, caller.endpoints, caller.max_line_bytes)
            if line.custom_id not in self.results.answered:
                yield line
            if number % LINES_A_TURN == 0:
                yield None

    async def run(self) -> None:
        """Returns when every line has a result. Cancelled, it ends what is open. Raises an `ExceptionGroup`."""
        async with asyncio.TaskGroup() as outer:
            syncing = outer.create_task(self._keep_synced())
            async with asyncio.TaskGroup() as answering:
                for line in self._unanswered():
                    if line is None:
                        await asyncio.sleep(0)
                        continue
                    call = await self.caller.begin(line, self.timeout_s)
                    task = answering.create_task(self._answer(line.custom_id, call))
                    task.add_done_callback(lambda _, call=call: self.caller.gate.leave(call))
            syncing.cancel()

    async def _answer(self, custom_id: str, call: InProcessCall) -> None:
        while (reply := await call.run()).status == 503:
            await asyncio.sleep(RETRY_S)
        self.results.add(custom_id, reply)

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            if not self.results.is_synced:
                await run_whole(self._sync)

    def _sync(self) -> None:
        self.results.sync()
        self.on_sync()

    async def refuse_rest(self, failure: LineFailure) -> None:
        """Writes `failure` as the result of each line that has none."""
        for line in self._unanswered():
            if line is None:
                await asyncio.sleep(0)
            else:
                self.results.add(line.custom_id, failure)


async def run_whole(function: Callable[[], T]) -> T:
    """Runs `function` in a thread to its end: a cancellation takes effect afterwards, so that nothing writes later."""
    task = asyncio.create_task(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
