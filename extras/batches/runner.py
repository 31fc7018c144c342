"""Runs the batches of the directory, in the one frontend that holds its lock."""

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import msgspec

from extras.batches.line_run import LineCaller, LineRun, run_whole
from extras.batches.lines import LineError, check_file
from extras.batches.records import BatchErrors, BatchRecord, Ending, RequestCounts
from extras.batches.results import LineFailure, Results, ResultsError
from extras.batches.store import KEEP_S, BatchStore
from frontend.requests.client import INTERNAL, Client, NamedKeys

MAX_LINES = 50_000
"""The limit of a batch, as in OpenAI's API."""

CLEAN_S = 3600.0
RETRY_S = 10.0
"""After an error of the disk."""

FAILURES: dict[Ending, LineFailure] = {
    "expired": LineFailure("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": LineFailure("batch_cancelled", "The batch was cancelled before this request was executed."),
}

log = logging.getLogger("sluice.frontend")


@dataclass(eq=False)
class BatchRunner:
    """Call `tick` once a second: it looks for batches, and ends those that were cancelled.

    The batches of a key among `named` count as its requests. They are cancelled when it is revoked.
    """

    _store: BatchStore
    _caller: LineCaller
    _request_timeout_s: float | None
    _named: NamedKeys | None = None
    _lock: int | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])
    _cancelled: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    _is_stopped: bool = False
    _following: asyncio.Task[None] | None = None
    _cleaning: asyncio.Task[None] | None = None
    _next_clean_s: float = 0.0
    _retry_s: float = 0.0

    def tick(self) -> None:
        """No-op if another frontend owns the batches."""
        now_s = time.monotonic()
        if self._is_stopped or now_s < self._retry_s:
            return
        try:
            if self._lock is None:
                self._lock = self._store.try_lock()
        except OSError as error:
            self._record_error(f"the batch directory: {error}")
        if self._lock is None:
            return
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        self._caller.gate.look()
        if now_s >= self._next_clean_s:
            self._next_clean_s = now_s + CLEAN_S
            self._cleaning = asyncio.create_task(self._clean())

    async def _follow(self) -> None:
        try:
            records = await run_whole(self._store.find_open)
        except OSError as error:
            self._record_error(f"the batch directory: {error}")
            return
        if self._is_stopped:
            return
        for record in records:
            if record.id not in self._tasks:
                self._cancelled[record.id] = asyncio.Event()
                self._tasks[record.id] = task = asyncio.create_task(self._run(record.id))
                task.add_done_callback(lambda _, name=record.id: self._forget(name))
            if record.status != "cancelling" and self._find_client(record) is None:
                self._store.cancel(record)
            if record.status == "cancelling":
                self._cancelled[record.id].set()

    def _find_client(self, record: BatchRecord) -> Client | None:
        """Returns in whose name the batch runs, `None` if its key has been revoked."""
        return INTERNAL if self._named is None or not record.key else self._named.find_by_name(record.key)

    def _forget(self, batch_id: str) -> None:
        del self._tasks[batch_id], self._cancelled[batch_id]
        self._release()

    def _release(self) -> None:
        """Leaves the lock to another frontend as soon as nothing is written here any more."""
        if self._is_stopped and not self._tasks and self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def stop(self) -> None:
        """Ends what is open, and runs nothing more: the next frontend continues. May be called again."""
        self._is_stopped = True
        for task in (*self._tasks.values(), self._cleaning):
            if task is not None:
                task.cancel()
        self._release()

    def gauges(self) -> dict[str, float]:
        return {"batches": len(self._tasks), **self._caller.gauges()}

    async def _clean(self) -> None:
        try:
            await asyncio.to_thread(self._store.clean)
        except OSError as error:
            self._record_error(f"the batch directory: {error}")

    def _record_error(self, text: str) -> None:
        log.error("%s; trying again in %g s", text, RETRY_S)
        self._retry_s = time.monotonic() + RETRY_S

    async def _run(self, batch_id: str) -> None:
        try:
            record = await asyncio.to_thread(self._store.find_batch, batch_id)
            if record.is_open and record.in_progress_at is None:
                record = await run_whole(lambda: self._validate(record))
            if record.is_open:
                await self._answer(record)
        except* OSError as errors:
            self._record_error(f"{batch_id}: {first_of(errors)}")
        except* ResultsError as errors:
            record = await asyncio.to_thread(self._store.find_batch, batch_id)
            error = LineError(code="results_unreadable", message=str(first_of(errors)))
            await asyncio.to_thread(self._fail, record, (error,))

    def _validate(self, record: BatchRecord) -> BatchRecord:
        path = self._store.input(record)
        checked = check_file(path, (record.endpoint,), self._caller.max_line_bytes, MAX_LINES)
        if checked.errors:
            return self._fail(record, checked.errors)
        record = record.become("in_progress", int(time.time()), request_counts=RequestCounts(checked.num_lines))
        self._store.write_batch(record)
        log.info("%s: %d lines", record.id, checked.num_lines)
        return record

    def _fail(self, record: BatchRecord, errors: tuple[LineError, ...]) -> BatchRecord:
        record = record.become("failed", int(time.time()), errors=BatchErrors(errors))
        self._store.write_batch(record)
        log.info("%s has failed: %s", record.id, errors[0].message)
        return record

    async def _answer(self, record: BatchRecord) -> None:
        with contextlib.closing(Results(*self._store.results(record))) as results:
            await run_whole(results.load)
            # One that waits for a row does not end by the timeout of requests that people wait for.
            left_s = record.expires_at - time.time()
            timeout_s = None if self._request_timeout_s is None else max(1.0, left_s)
            run = LineRun(
                self._store.input(record),
                results,
                self._caller,
                lambda: self._store.write_batch(_with_counts(record, results)),
                timeout_s,
                self._find_client(record) or INTERNAL,
            )
            ending = await self._wait_end(record, run, results)
            if ending in FAILURES:
                await run_whole(partial(run.refuse_rest, FAILURES[ending]))
            await run_whole(lambda: self._finish(record, results, ending))

    async def _wait_end(self, record: BatchRecord, run: LineRun, results: Results) -> Ending:
        """Runs the lines until all have a result, the batch is cancelled or its time is over."""
        if len(results.answered) >= record.request_counts.total:
            return "completed"
        running = asyncio.create_task(run.run())
        cancelled = asyncio.create_task(self._cancelled[record.id].wait())
        try:
            left_s = max(0.0, record.expires_at - time.time())
            done, _ = await asyncio.wait((running, cancelled), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if running in done:
                await running
                return "completed"
            return "cancelled" if cancelled in done else "expired"
        finally:
            cancelled.cancel()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _finish(self, record: BatchRecord, results: Results, ending: Ending) -> None:
        """Hands the results to the client. After a crash in the middle it is done once more, with the same outcome."""
        results.sync()
        record = _with_counts(record, results).become("finalizing", int(time.time()))
        self._store.write_batch(record)
        keep_s = KEEP_S if record.output_expires_after is None else record.output_expires_after.seconds
        output_id, error_id = self._store.publish(record, keep_s)
        if ending == "cancelled":
            record = self._store.find_batch(record.id)  # which records when it began
        record = record.become(ending, int(time.time()), output_file_id=output_id, error_file_id=error_id)
        self._store.write_batch(record)
        log.info("%s: %s, %d answered, %d failed", record.id, ending, results.num_completed, results.num_failed)


def _with_counts(record: BatchRecord, results: Results) -> BatchRecord:
    counts = RequestCounts(record.request_counts.total, results.num_completed, results.num_failed)
    return msgspec.structs.replace(record, status="in_progress", request_counts=counts)


def first_of(error: BaseException) -> BaseException:
    """Returns the first error of a group, or of a group in it."""
    if isinstance(error, BaseExceptionGroup):
        return first_of(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error
