"""Standbys for the only engine: when it dies, no request waits for an import of torch (`--no-standby` disables it)."""

import time

from messages.config.server import RunConfig
from messages.control.processes import SUCCESSOR, kind_of
from messages.engine_names import SCHEDULER
from runtime.forked_process import is_fork
from supervisor.child import Child
from supervisor.early_scheduler import EarlyScheduler
from supervisor.lifecycle import Lifecycle

QUIET_S = 5.0
"""The server has served for this long before a standby starts, so that it competes with no other start."""

FAILED_S = 60.0
"""The same after a standby that ended by itself."""


class Standby:
    """Keeps a standby running while there is exactly one scheduler.

    With several schedulers, the others continue the requests of a dead one at once. If the scheduler has other ranks,
    each gets a process that has imported torch, as all of them start again together.
    """

    def __init__(self, settings: RunConfig, lifecycle: Lifecycle):
        self._is_requested = settings.standby and (settings.num_ranks == 1 or not is_fork())
        self._has_ranks = settings.num_ranks > 1
        self._lifecycle = lifecycle
        self._spare: Child | None = None
        self._due_s: float | None = None

    def look(self) -> None:
        """Starts the standby when it is due; call it in each turn."""
        now_s = time.monotonic()
        if self._spare is not None and self._spare.is_successor and not self._spare.pid:
            self._due_s = now_s + (QUIET_S if self._spare.has_been_notified else FAILED_S)
            self._spare = None
        scheduler = self._find_alone()
        if scheduler is None:
            self._due_s = None
        elif self._due_s is None:
            self._due_s = now_s + QUIET_S
        elif now_s >= self._due_s:
            self._start(scheduler)
            self._due_s = None

    def close(self) -> None:
        """Ends the standbys that are not part of the run yet."""
        for spare in self._lifecycle.spares:
            spare.end()

    def _start(self, scheduler: Child) -> None:
        if not self._has_ranks:
            self._spare = self._lifecycle.start_successor(scheduler, is_spare=True)
        while not self._has_all(scheduler):
            self._lifecycle.spares.append(EarlyScheduler(is_spare=True))

    def _has_all(self, scheduler: Child) -> bool:
        """True if no other standby is needed."""
        group = self._lifecycle.group
        ranks = [one for one in (scheduler, *group.ranks_of(scheduler)) if not one.command.is_remote]
        return len(self._lifecycle.spares) >= len(ranks) if self._has_ranks else SCHEDULER + SUCCESSOR in group

    def _find_alone(self) -> Child | None:
        """Returns the scheduler that could have a standby now, `None` if there is none."""
        group = self._lifecycle.group
        if not self._is_requested or not group.has_started or group.is_draining or group.is_stopping:
            return None
        schedulers = [child for child in group if kind_of(child.name) == SCHEDULER]
        is_alone = len(schedulers) == 1 and not schedulers[0].command.is_remote
        scheduler = schedulers[0] if is_alone and not self._has_all(schedulers[0]) else None
        can_be = scheduler is not None and self._lifecycle.is_replaced(scheduler) and group.is_up(scheduler)
        return scheduler if can_be and not schedulers[0].is_on_trial else None
