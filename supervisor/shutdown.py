"""The end of a run: the frontend drains, then every process stops, the door first."""

import time
from collections.abc import Callable
from typing import Protocol

from messages.control import PREDECESSOR, Drain
from messages.orders import Done
from supervisor.admin.tasks import OrderFailedError, Task, until
from supervisor.child import Child
from supervisor.console import Console
from supervisor.crew import Crew

STOP_TIMEOUT_S = 3.0
FRONT_STOP_TIMEOUT_S = 2.0
"""What the frontend gets, before the others are stopped, to end the streams of its clients."""

HURRIED_STOP_TIMEOUT_S = 1.0
DRAIN_MARGIN_S = 1.0


class Loop(Protocol):
    """The launcher's loop, as those see it who wait in it."""

    @property
    def is_hurried(self) -> bool:
        """Tells whether the operator has asked twice for the end."""
        ...

    def turn_until(self, is_over: Callable[[], bool], deadline_s: float = ...) -> None:
        """Turns until `is_over`, until the deadline (`time.monotonic()`), or until another stop signal."""
        ...


class Shutdown:
    """Ends the processes of `crew` in good order."""

    def __init__(self, crew: Crew, console: Console, loop: Loop):
        self._crew = crew
        self._console = console
        self._loop = loop
        self.is_wanted = False

    def drain(self, timeout_s: float) -> None:
        """Has the frontends take nothing new and waits for their last request, or for their time to be over."""
        if not self._crew.can_front_hear() or self._loop.is_hurried or self.is_wanted:
            return
        self.begin_drain(timeout_s)
        self._loop.turn_until(self._has_drained, time.monotonic() + timeout_s + DRAIN_MARGIN_S)
        num_unfinished = self._num_unfinished()
        if num_unfinished:
            self._console.say(f"{num_unfinished} requests did not finish in time")

    def begin_drain(self, timeout_s: float) -> None:
        """Tells the frontends to take nothing new; their reports will be in `crew.drained`."""
        self._console.say(f"draining: running requests may take {timeout_s:g} s; Ctrl-C again stops at once")
        self._crew.is_draining = True
        for front in self._crew.fronts():
            if front.is_welcome:
                self._crew.control.send(front.name, Drain(timeout_s))

    def drain_by_order(self, timeout_s: float) -> Task:
        """Drains beside the loop; `is_wanted` is true when that is over, and then the run ends."""
        crew = self._crew
        if crew.is_draining or not (crew.has_started and crew.can_front_hear()):
            raise OrderFailedError(
                "busy", "the server drains already" if crew.is_draining else "the server is starting"
            )
        self.begin_drain(timeout_s)
        yield from until(self._has_drained, time.monotonic() + timeout_s + DRAIN_MARGIN_S)
        num = self._num_unfinished()
        self.is_wanted = True
        return Done(f"drained: {num} requests did not finish in time" if num else "drained: every request has ended")

    def stop(self) -> None:
        """Ends every process: the door first, then what is behind it; whoever does not go is killed."""
        crew = self._crew
        crew.is_stopping = True
        crew.restarts.cancel()
        self._stop_group(crew.fronts(), FRONT_STOP_TIMEOUT_S)
        self._stop_group(list(crew.children.values()), STOP_TIMEOUT_S)
        for child in list(crew.children.values()):
            if child.pid and child.is_external:
                self._console.say_of(child.name, "still runs; it ends when it notices that the launcher is gone")
            elif child.pid:
                self._console.say_of(child.name, "does not stop, so it is killed")
                child.kill()
                child.wait(STOP_TIMEOUT_S)
            crew.show_output(child)
            crew.forget_descriptor(child)
        crew.control.close()

    def _has_drained(self) -> bool:
        """Tells whether no frontend that lives has a request left, also none that is about to leave."""
        crew = self._crew
        is_one_leaving = any(child.is_front and child.name.endswith(PREDECESSOR) for child in crew.children.values())
        return not is_one_leaving and all(front.name in crew.drained for front in crew.fronts() if front.pid)

    def _num_unfinished(self) -> int:
        return sum(self._crew.drained.get(front.name, 0) for front in self._crew.fronts())

    def _stop_group(self, group: list[Child], timeout_s: float) -> None:
        for child in group:
            self._crew.ask_to_stop(child)
        patience_s = min(timeout_s, HURRIED_STOP_TIMEOUT_S) if self._loop.is_hurried else timeout_s
        self._loop.turn_until(lambda: not any(child.pid for child in group), time.monotonic() + patience_s)
