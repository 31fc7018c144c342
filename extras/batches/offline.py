"""`--batch-run`: one file of requests is answered into another, and then the server ends."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from extras.batches.line_run import LineCaller, LineRun, run_whole
from extras.batches.lines import ENDPOINTS, BadLineError, check_file
from extras.batches.results import Results, ResultsError
from extras.batches.runner import first_of
from messages.errors import BootError, errors_as

NUM_SHOWN = 10
"""Errors of the input file."""

log = logging.getLogger("sluice.frontend")


def check_offline(files: tuple[str, ...], max_line_bytes: int, *, is_first: bool) -> None:
    """Raises `BootError` if the files cannot be used. Only the first frontend of a run reads them: a later one would
    keep its clients waiting, and its predecessor may still have the output open."""
    if len(files) != 2:
        raise BootError("--batch-run takes two files: one of requests, and one for their results")
    if not is_first:
        return
    path, output = map(Path, files)
    with errors_as(BootError, "--batch-run", of=(OSError, ResultsError)):
        errors = check_file(path, ENDPOINTS, max_line_bytes).errors
        if not errors:
            with contextlib.closing(Results(output, output)) as results:
                results.load()
    if errors:
        shown = [f"line {error.line}: {error.message}" if error.line else error.message for error in errors[:NUM_SHOWN]]
        more = [f"and at least {len(errors) - NUM_SHOWN} more"] * (len(errors) > NUM_SHOWN)
        raise BootError("\n  ".join([f"{path} cannot be run:", *shown, *more]))


@dataclass
class OfflineBatch:
    """Call `tick` once a second. `has_started` returns whether requests can be sent; `end` ends the server."""

    files: tuple[str, ...]
    caller: LineCaller
    has_started: Callable[[], bool]
    end: Callable[[], Awaitable[object]]
    _is_stopped: bool = False
    _task: asyncio.Task[None] | None = None

    def tick(self) -> None:
        self.caller.gate.look()
        if not self._is_stopped and self.has_started() and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Ends what is open. May be called again."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def gauges(self) -> dict[str, float]:
        return self.caller.gauges()

    async def _run(self) -> None:
        """Ends early after an error, and the next tick begins again where it was."""
        path, output = map(Path, self.files)
        try:
            with contextlib.closing(Results(output, output)) as results:
                await run_whole(results.load)
                await LineRun(path, results, self.caller, lambda: None, None).run()
                await run_whole(results.sync)
            log.info("%s: %d answered, %d failed", output, results.num_completed, results.num_failed)
            await self.end()
        except* (OSError, BadLineError, ResultsError) as errors:
            log.error("%s", first_of(errors))
