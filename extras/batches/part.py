"""Batches in a frontend: their endpoints, and what answers their lines. Without their flags nothing runs.

`--batch-run`: one file of requests is answered into another, and then the server ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from extras.batches.batches_api import MAX_LIMIT, BatchApi, BatchBody, BatchList
from extras.batches.config import BatchConfig
from extras.batches.files_api import FileDeleted, FileList, FilesApi, UploadForm
from extras.batches.form_parser import FORM_TYPE
from extras.batches.gate import Gate
from extras.batches.line_run import LineCaller, LineRun, run_whole
from extras.batches.lines import ENDPOINTS, BadLineError, check_file
from extras.batches.records import BatchRecord, FileRecord
from extras.batches.results import Results, ResultsError
from extras.batches.runner import BatchRunner, first_of
from extras.batches.store import MAX_FILES, BatchStore
from frontend.extras import FrontendContext, FrontendPart
from frontend.http.endpoint import Endpoint, Name, Parameter, limit_of
from frontend.http.keys import load_named_keys
from messages.control.processes import FRONTEND, place_of
from messages.errors import BootError

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
    try:
        errors = check_file(path, ENDPOINTS, max_line_bytes).errors
        if not errors:
            with contextlib.closing(Results(output, output)) as results:
                results.load()
    except (OSError, ResultsError) as error:
        raise BootError(f"--batch-run: {error}") from None
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


_BATCHES = partial(Endpoint, tag="batches", errors=(404,))
_POST = partial(_BATCHES, method="POST")
_ONE = partial(_BATCHES, parameters=(Parameter("path", "id", Name, "The id."),))

AFTER = Parameter("query", "after", str, "Only what follows the one with this id.")
FILE_QUERY = (
    AFTER,
    limit_of(MAX_FILES, "The most to show."),
    Parameter("query", "purpose", str, "Only files of this purpose."),
    Parameter("query", "order", str, "desc, the newest first (if it is not given), or asc."),
)
BATCH_QUERY = (AFTER, limit_of(MAX_LIMIT, "The most to show."))
EXAMPLE = {
    "input_file_id": "file-18720adf6a4c14f05f1c2b3a",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}
EXAMPLES = {"chats": EXAMPLE}


def batching(files: FilesApi, batches: BatchApi) -> list[Endpoint]:
    """Returns the endpoints of files and batches."""
    upload, create = "Upload a file of requests for a batch", "Answer the requests of a file when there is time"
    newest, end = "The batches, the newest first", "End a batch; what is answered stays"
    return [
        _POST("/v1/files", files.upload, upload, FileRecord, body=UploadForm, body_type=FORM_TYPE),
        _BATCHES("/v1/files", files.list_files, "The files", FileList, parameters=FILE_QUERY),
        _ONE("/v1/files/{id}", files.show, "One file", FileRecord),
        _ONE("/v1/files/{id}", files.delete, "Delete a file", FileDeleted, method="DELETE"),
        _ONE("/v1/files/{id}/content", files.content, "The content of a file"),
        _POST("/v1/batches", batches.create, create, BatchRecord, body=BatchBody, errors=(404, 429), examples=EXAMPLES),
        _BATCHES("/v1/batches", batches.list_batches, newest, BatchList, parameters=BATCH_QUERY),
        _ONE("/v1/batches/{id}", batches.show, "One batch", BatchRecord),
        _ONE("/v1/batches/{id}/cancel", batches.cancel, end, BatchRecord, method="POST", errors=(404, 409)),
    ]


class BatchPart(FrontendPart):
    """Raises `BootError` for a batch directory that cannot be used."""

    def __init__(self, context: FrontendContext):
        self._context = context
        config = context.link.config
        batch = self._batch = BatchConfig.of(config)
        self._store = BatchStore(Path(batch.batch_dir), int(batch.batch_dir_gb * 2**30)) if batch.batch_dir else None
        self._runners: list[BatchRunner | OfflineBatch] = []
        if self._store is not None:
            context.service.images.read_file = self._store.read_file
        files = FilesApi(self._store, int(batch.max_batch_file_mb * 2**20))
        self.endpoints = batching(files, BatchApi(self._store, context.unknown))

    def begin(self, endpoints: Iterable[Endpoint]) -> None:
        """Makes what runs batches here. Raises `BootError` for files that cannot be used."""
        link, service = self._context.link, self._context.service
        http, store = link.config.http, self._store
        files = self._batch.batch_run if place_of(link.name) == FRONTEND else ()
        if store is None and not files:
            return
        gate = Gate(link.config, service.registry, service.processes, link.uid_block)
        by_path = {endpoint.path: endpoint for endpoint in endpoints if endpoint.path in ENDPOINTS}
        caller = LineCaller(by_path, gate, service.record_response, http.max_body_bytes)
        if store is not None:
            self._runners.append(BatchRunner(store, caller, http.request_timeout_s, load_named_keys(link.config)))
        if files:
            check_offline(files, caller.max_line_bytes, is_first=link.incarnation == 1)
            has_started = lambda: service.processes.has_started  # noqa: E731
            self._runners.append(OfflineBatch(files, caller, has_started, self._context.end))

    def gauges(self) -> dict[str, float]:
        return {name: value for runner in self._runners for name, value in runner.gauges().items()}

    def tick(self) -> None:
        for runner in self._runners:
            runner.tick()

    def stop(self) -> None:
        for runner in self._runners:
            runner.stop()


make_part = BatchPart
