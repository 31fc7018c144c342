"""What time tells of the processes: one that hangs is killed and replaced, one whose start is stuck has failed."""

import time

from messages.config import RunConfig
from messages.control import ProcessStatus
from supervisor.child import Child
from supervisor.console import Console
from supervisor.endings import quote
from supervisor.lifecycle import Lifecycle, RunFailedError

MAX_GAP_S = 3.0
"""Between two looks. After a longer one the launcher itself was stopped (Ctrl-Z), and everybody looks hung."""


class Watch:
    """Looks at the age of beats and phases, as often as the loop turns."""

    def __init__(self, settings: RunConfig, lifecycle: Lifecycle, console: Console):
        self._settings = settings
        self._lifecycle = lifecycle
        self._group = lifecycle.group
        self._console = console
        self._last_look_ns = time.monotonic_ns()

    def look(self) -> None:
        """Raises `RunFailedError` where a first start is stuck."""
        now_ns = time.monotonic_ns()
        is_fresh = now_ns - self._last_look_ns < MAX_GAP_S * 1e9
        self._last_look_ns = now_ns
        if self._group.is_stopping or not is_fresh:
            return
        for status in self._group.board.find_newly_hung(now_ns):
            self._deal_with_hang(status, now_ns)
        for child in self._group:
            stuck_s = self._group.board.seconds_without_progress(child.name, now_ns)
            if stuck_s > self._settings.boot_timeout_s and not child.is_external:
                self._end_stuck_start(child, stuck_s)

    def _deal_with_hang(self, status: ProcessStatus, now_ns: int) -> None:
        """Kills a hung process where it can be replaced; its end brings the replacement."""
        child = self._group.find(status.name)
        assert child is not None
        age_s = (now_ns - status.beat_ns) / 1e9
        what = "in one step" if status.busy_since_ns else "idle"
        is_replaced = self._lifecycle.is_replaced(child)
        end = ", so it is killed" if is_replaced else ""
        self._console.say_of(child.name, f"hangs: no heartbeat for {age_s:.0f} s, {what}{end}", "error")
        if is_replaced:
            child.kill(why="hung and was killed")
            self._group.board.killed(child.name)

    def _end_stuck_start(self, child: Child, stuck_s: float) -> None:
        phase = self._group.status(child).phase
        child.boot_error = f"no progress for {stuck_s:.0f} s in phase {phase!r} (--boot-timeout-s)"
        if self._lifecycle.is_first_start(child):
            raise RunFailedError(f"{child.name} cannot start: {child.boot_error}{quote(child.last_lines)}")
        child.kill()
