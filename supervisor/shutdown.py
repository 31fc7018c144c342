"""The end of a run: the frontend drains, then every process stops, the door first."""

import time
from collections.abc import Callable
from typing import Protocol

from supervisor.child import Child
from supervisor.console import Console
from supervisor.lifecycle import Lifecycle

STOP_TIMEOUT_S = 3.0
FRONT_STOP_TIMEOUT_S = 2.0
"""The time for the frontend to end the streams of its clients before the others are stopped."""

HURRIED_STOP_TIMEOUT_S = 1.0
DRAIN_MARGIN_S = 1.0


class Loop(Protocol):
    """The launcher's loop, as code that waits in it sees it."""

    @property
    def is_hurried(self) -> bool:
        """True if the operator has asked twice for the end."""
        ...

    def turn_until(self, is_over: Callable[[], bool], deadline_s: float = ...) -> None:
        """Turns until `is_over`, until the deadline (`time.monotonic()`), or until another stop signal."""
        ...


class Shutdown:
    """Ends the processes one layer after another."""

    def __init__(self, lifecycle: Lifecycle, console: Console, loop: Loop):
        self._lifecycle = lifecycle
        self._group = lifecycle.group
        self._console = console
        self._loop = loop
        self.is_requested = False

    def drain(self, timeout_s: float) -> None:
        """Makes the frontends refuse new requests and waits for their last request, at most for their time limit."""
        if not self._group.has_listening_frontend() or self._loop.is_hurried or self.is_requested:
            return
        self.begin_drain(timeout_s)
        self._loop.turn_until(self._group.has_drained, time.monotonic() + timeout_s + DRAIN_MARGIN_S)
        num_unfinished = self._group.num_unfinished()
        if num_unfinished:
            self._console.show(f"{num_unfinished} requests did not finish in time", "warning")

    def begin_drain(self, timeout_s: float) -> None:
        """Makes the frontends refuse new requests; the group's `has_drained` turns true when they have answered."""
        self._console.show(f"draining: running requests may take {timeout_s:g} s; Ctrl-C again stops at once")
        self._group.begin_drain(timeout_s)

    def stop(self) -> None:
        """Ends every process: the frontends first, ranks last; processes that do not end are killed."""
        group = self._group
        group.is_stopping = True
        self._lifecycle.restarts.cancel()
        self._stop_all(group.frontends(), FRONT_STOP_TIMEOUT_S)
        self._stop_all([child for child in group if group.leader_of(child) is child], STOP_TIMEOUT_S)
        self._stop_all(list(group), STOP_TIMEOUT_S)
        for child in group:
            if child.pid and child.is_external:
                self._console.show_of(child.name, "still runs; it ends when it notices that the launcher is gone")
            elif child.pid:
                self._console.show_of(child.name, "does not stop, so it is killed", "warning")
                child.kill()
                child.wait(STOP_TIMEOUT_S)
            self._lifecycle.show_output(child)
            group.close_output(child)
        group.control.close()
        group.memory_files.close()

    def _stop_all(self, children: list[Child], timeout_s: float) -> None:
        for child in children:
            self._group.ask_to_stop(child)
        patience_s = min(timeout_s, HURRIED_STOP_TIMEOUT_S) if self._loop.is_hurried else timeout_s
        self._loop.turn_until(lambda: not any(child.pid for child in children), time.monotonic() + patience_s)
