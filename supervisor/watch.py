"""Time limits: a process that hangs is killed and replaced, one whose start is stuck has failed.

A stall is reported once with a snapshot; with `--on-stall restart` the process is also replaced.
"""

import time

from messages.config.server import RunConfig
from messages.control.processes import ProcessStatus
from supervisor.child import Child
from supervisor.console import Console
from supervisor.endings import quote
from supervisor.lifecycle import Lifecycle, RunFailedError, TakeSnapshot
from supervisor.process_files import run_state_of
from supervisor.stalls import StallDetector

MAX_GAP_S = 3.0
"""Between two looks. After a longer one the launcher was stopped itself, perhaps with the whole machine, and until the
next beats every process looks hung."""

STALL_LOOK_NS = 1_000_000_000
"""Between two looks for stalls; beats come as often."""

KILLED = {"hang": "hung and was killed", "stall": "stalled and was killed"}


class Watch:
    """Looks at the age of beats and phases as often as the loop turns, and for stalls once a second."""

    def __init__(self, settings: RunConfig, lifecycle: Lifecycle, console: Console, take_snapshot: TakeSnapshot):
        self._settings = settings
        self._lifecycle = lifecycle
        self._group = lifecycle.group
        self._console = console
        self._take_snapshot = take_snapshot
        self._stalls = StallDetector(settings.stall_s, run_state_of)
        self._looked_for_stalls_ns = 0
        self._last_look_ns = time.monotonic_ns()

    def look(self) -> None:
        """Raises `RunFailedError` if a first start is stuck."""
        now_ns = time.monotonic_ns()
        is_fresh = now_ns - self._last_look_ns < MAX_GAP_S * 1e9
        self._last_look_ns = now_ns
        if not is_fresh:
            self._stalls.forget(now_ns)
            self._group.board.resume(now_ns)
        if self._group.is_stopping:
            return
        for status in self._group.board.find_newly_hung(now_ns):
            self._deal_with_hang(status, now_ns)
        for child in self._group:
            stuck_s = self._group.board.seconds_without_progress(child.name, now_ns)
            if stuck_s > self._settings.boot_timeout_s and not child.is_external:
                self._end_stuck_start(child, stuck_s)
        if self._settings.stall_s and now_ns - self._looked_for_stalls_ns >= STALL_LOOK_NS:
            self._looked_for_stalls_ns = now_ns
            self._look_for_stalls(now_ns)

    def _look_for_stalls(self, now_ns: int) -> None:
        board = self._group.board
        new = self._stalls.look(board.statuses(), now_ns)
        board.record_stalls(new, self._stalls.open.values())
        for stall in new:
            replaces = self._settings.on_stall == "restart"
            end = "; it is replaced (--on-stall restart)"
            self._deal_with("stall", stall.process, stall.text, f"STALL ({stall.kind}): ", end, replaces=replaces)

    def _deal_with_hang(self, status: ProcessStatus, now_ns: int) -> None:
        age_s = (now_ns - status.beat_ns) / 1e9
        what = "in one step" if status.busy_since_ns else "idle"
        self._deal_with("hang", status.name, f"hangs: no heartbeat for {age_s:.0f} s, {what}", "", ", so it is killed")

    def _deal_with(self, cause: str, name: str, text: str, kind: str, end: str, *, replaces: bool = True) -> None:
        """Takes a snapshot, notifies the operator and, with `replaces`, kills the process if it can be replaced.

        Its end causes the replacement.
        """
        child = self._group.find(name)
        assert child is not None
        is_replaced = replaces and self._lifecycle.is_replaced(child)
        replace = self._lifecycle.killer(child, KILLED[cause]) if is_replaced else None
        path = self._take_snapshot(cause, name, text, replace)
        snapshot = f"; snapshot: {path}" if path else ""
        self._console.show_of(name, f"{kind}{text}{end if is_replaced else ''}{snapshot}", "error")

    def _end_stuck_start(self, child: Child, stuck_s: float) -> None:
        phase = self._group.status(child).phase
        child.boot_error = f"no progress for {stuck_s:.0f} s in phase {phase!r}"
        if self._lifecycle.is_first_start(child):
            raise RunFailedError(f"{child.name} cannot start: {child.boot_error}{quote(child.last_lines)}")
        child.kill()
