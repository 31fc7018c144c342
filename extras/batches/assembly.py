"""How the parts of batches fit together: nothing is made for a server that has none."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from extras.batches.gate import Gate
from extras.batches.line_run import LineCaller
from extras.batches.lines import ENDPOINTS
from extras.batches.offline import OfflineBatch, check_offline
from extras.batches.runner import BatchRunner
from extras.batches.store import BatchStore
from frontend.http.endpoint import Endpoint
from frontend.service import Service
from messages.config.server import BatchConfig
from messages.control.processes import FRONTEND, place_of
from runtime.process import ProcessLink


def open_store(batch: BatchConfig) -> BatchStore | None:
    """Returns the batch directory, `None` where there is none. Raises `BootError` for one that cannot be used."""
    return BatchStore(Path(batch.batch_dir), int(batch.batch_dir_gb * 2**30)) if batch.batch_dir else None


def make_runners(
    link: ProcessLink,
    service: Service,
    store: BatchStore | None,
    endpoints: Iterable[Endpoint],
    end: Callable[[], Awaitable[object]],
) -> list[BatchRunner | OfflineBatch]:
    """Returns what runs batches here; `end` asks for the end of the server. Raises `BootError` for unusable files."""
    config = link.config
    files = config.batch.batch_run if place_of(link.name) == FRONTEND else ()
    if store is None and not files:
        return []
    gate = Gate(config, service.registry, service.processes, link.uid_block)
    by_path = {endpoint.path: endpoint for endpoint in endpoints if endpoint.path in ENDPOINTS}
    caller = LineCaller(by_path, gate, service.note_response, int(config.http.max_body_mb * 2**20))
    runners: list[BatchRunner | OfflineBatch] = []
    if store is not None:
        runners.append(BatchRunner(store, caller, config.http.request_timeout_s))
    if files:
        check_offline(files, caller.max_line_bytes, is_first=link.incarnation == 1)
        runners.append(OfflineBatch(files, caller, lambda: service.processes.has_started, end))
    return runners
