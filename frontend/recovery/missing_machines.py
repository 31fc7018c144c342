"""Requests that end because the machine of a stage has left their engine and does not come back in time."""

import logging
import time
from collections.abc import Callable

from frontend.links.processes import ProcessView
from frontend.requests.generation import Generation
from frontend.requests.registry import Registry

log = logging.getLogger("sluice.frontend")


class MissingMachines:
    """Calls `end` for each request in the ring if no engine serves, and one has waited `hold_s` for a machine.

    A process that starts on a machine that is there may take longer: requests wait for it without a limit.
    """

    def __init__(self, hold_s: float, processes: ProcessView, registry: Registry, end: Callable[[Generation], None]):
        self._hold_s = hold_s
        self._processes = processes
        self._registry = registry
        self._end = end
        self._since_s: float | None = None

    def follow(self) -> None:
        """Call it after each process table."""
        missing = [] if self._processes.is_open else self._processes.missing_stages()
        now_s = time.monotonic()
        self._since_s = (self._since_s or now_s) if missing else None
        if self._since_s is None or now_s - self._since_s < self._hold_s:
            return
        waiting = [generation for generation in self._registry.all_sent() if generation.final is None]
        for generation in waiting:
            self._end(generation)
        if waiting:
            log.error("%d requests end without their engine: %s", len(waiting), ", ".join(missing))
