"""A standby for the scheduler: when that dies, no request waits for a start (`--no-standby` disables it)."""

import time

from messages.config.server import RunConfig
from messages.control.processes import SUCCESSOR, kind_of
from messages.engine_names import SCHEDULER
from supervisor.child import Child
from supervisor.lifecycle import Lifecycle

QUIET_S = 5.0
"""The server has served for this long before a standby starts, so that it competes with no other start."""

FAILED_S = 60.0
"""The same after a standby that ended by itself."""


class Standby:
    """Keeps a standby running while there is exactly one scheduler, without other ranks.

    With several schedulers, the others continue the requests of a dead one at once. Other ranks would have to start
    anyway.
    """

    def __init__(self, settings: RunConfig, lifecycle: Lifecycle):
        self._is_requested = settings.standby and settings.num_ranks == 1
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
            self._spare = self._lifecycle.start_successor(scheduler, is_spare=True)
            self._due_s = None

    def _find_alone(self) -> Child | None:
        """Returns the scheduler that could have a standby now, `None` if there is none."""
        group = self._lifecycle.group
        if not self._is_requested or not group.has_started or group.is_draining or group.is_stopping:
            return None
        schedulers = [child for child in group if kind_of(child.name) == SCHEDULER]
        is_alone = len(schedulers) == 1 and not schedulers[0].command.is_remote
        has_place = is_alone and SCHEDULER + SUCCESSOR not in group
        scheduler = schedulers[0] if has_place else None
        can_be = scheduler is not None and self._lifecycle.is_replaced(scheduler) and group.is_up(scheduler)
        return scheduler if can_be and not schedulers[0].is_on_trial else None
