"""Reads LoRA adapters from disk in background threads."""

import logging
from collections.abc import Callable
from typing import Protocol

from messages.errors import BootError, ErrorInfo
from messages.ring.adapters import Adapter
from runtime.adapter_files import AdapterError, read_digest
from runtime.adapter_table import Table
from runtime.background import BackgroundCalls

READ_TIMEOUT_S = 300.0

log = logging.getLogger("sluice.scheduler")


class Tensors(Protocol):
    """An adapter in memory."""

    @property
    def digest(self) -> str: ...


class AdapterReader:
    """`read_tensors` reads and checks the adapter in a directory, in any thread; it raises `AdapterError`.

    `wake` ends the main loop's wait.
    """

    def __init__(self, read_tensors: Callable[[str], Tensors], wake: Callable[[], None]):
        self._read_tensors = read_tensors
        self._calls: BackgroundCalls[Adapter, Tensors] = BackgroundCalls(wake, READ_TIMEOUT_S)

    def start(self, adapter: Adapter) -> None:
        """Starts to read an adapter; `pop_read` returns it."""
        self._calls.start(adapter, lambda: self._read(adapter))

    def pop_read(self) -> list[tuple[Adapter, Tensors | ErrorInfo]]:
        """Returns the adapters that have been read, each with its tensors or an `ErrorInfo`."""
        return [
            (adapter, _explain(adapter, outcome) if isinstance(outcome, Exception) else outcome)
            for adapter, outcome in self._calls.pop_done()
        ]

    def read_table(self, table: Table, most: int) -> dict[str, Tensors]:
        """Returns the tensors of at most `most` adapters of the table, by digest, for a scheduler that starts.

        Raises `BootError` for an adapter that cannot be used, unless its files have changed since the table was made.
        """
        found: dict[str, Tensors] = {}
        for adapter in list(table.values())[:most]:
            try:
                found[adapter.digest] = self._read(adapter)
            except _ChangedError as error:
                log.warning("LoRA adapter %r cannot be used: %s", adapter.name, error)
            except AdapterError as error:
                raise BootError(f"--lora {adapter.name}: {error}") from None
        return found

    def _read(self, adapter: Adapter) -> Tensors:
        try:
            tensors = self._read_tensors(adapter.path)
        except AdapterError as error:
            raise _ChangedError(str(error)) if _has_changed(adapter) else error from None
        if tensors.digest != adapter.digest:
            raise _ChangedError(f"the files in {adapter.path} have changed since it was loaded")
        return tensors


def _has_changed(adapter: Adapter) -> bool:
    try:
        return read_digest(adapter.path) != adapter.digest
    except AdapterError:
        return True


class _ChangedError(AdapterError):
    """The directory holds other files than the adapter's, or none."""


def _explain(adapter: Adapter, error: Exception) -> ErrorInfo:
    name = adapter.name[:200]
    if isinstance(error, _ChangedError):  # the client named an adapter that the server has lost
        text = f"LoRA adapter {name!r}: {error}; restore the files, or load it again (/v1/load_lora_adapter)"
        return ErrorInfo(503, text, "service_unavailable", "model", "adapter_lost")
    if isinstance(error, AdapterError):
        return ErrorInfo(400, f"LoRA adapter {name!r} cannot be used: {error}", param="model")
    if isinstance(error, TimeoutError):
        return ErrorInfo(503, f"LoRA adapter {name!r} was not read within {READ_TIMEOUT_S:g} s", "service_unavailable")
    log.error("LoRA adapter %r could not be read", name, exc_info=error)
    return ErrorInfo(500, f"LoRA adapter {name!r} could not be read: {type(error).__name__}", "server_error")
