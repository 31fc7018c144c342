"""Batches in a frontend: their endpoints, and what answers their lines. Without their flags nothing runs."""

from collections.abc import Iterable
from pathlib import Path

from extras.batches.batches_api import BatchApi
from extras.batches.config import BatchConfig
from extras.batches.files_api import FilesApi
from extras.batches.gate import Gate
from extras.batches.line_run import LineCaller
from extras.batches.lines import ENDPOINTS
from extras.batches.offline import OfflineBatch, check_offline
from extras.batches.routes import batching
from extras.batches.runner import BatchRunner
from extras.batches.store import BatchStore
from frontend.extras import FrontendContext, FrontendPart
from frontend.http.endpoint import Endpoint
from frontend.http.keys import load_named_keys
from messages.control.processes import FRONTEND, place_of


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
