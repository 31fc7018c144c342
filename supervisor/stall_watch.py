"""What follows a stall: the operator is told once, a snapshot is taken, and with `--on-stall restart` it is ended."""

from messages.config import RunConfig
from messages.control import Stall
from supervisor.console import Console
from supervisor.lifecycle import Lifecycle, TakeSnapshot
from supervisor.process_files import run_state_of
from supervisor.stalls import StallDetector

LOOK_NS = 1_000_000_000
"""Between two looks; beats come as often."""


class StallWatch:
    """Looks for stalls once a second, if `--stall-s` wants that."""

    def __init__(self, settings: RunConfig, lifecycle: Lifecycle, console: Console, take_snapshot: TakeSnapshot):
        self._settings = settings
        self._lifecycle = lifecycle
        self._group = lifecycle.group
        self._console = console
        self._take_snapshot = take_snapshot
        self._detector = StallDetector(settings.stall_s, run_state_of)
        self._looked_ns = 0

    def forget(self) -> None:
        """The launcher itself was stopped: what it has seen before says nothing."""
        self._detector.forget()

    def look(self, now_ns: int) -> None:
        """Deals with what has begun to stall; `now_ns` is `time.monotonic_ns()`."""
        if not self._settings.stall_s or now_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now_ns
        new = self._detector.look(self._group.board.statuses(), now_ns)
        self._group.board.note_stalls(new, self._detector.open.values())
        for stall in new:
            self._deal_with(stall)

    def _deal_with(self, stall: Stall) -> None:
        child = self._group.find(stall.process)
        assert child is not None
        is_replaced = self._settings.on_stall == "restart" and self._lifecycle.is_replaced(child)
        replace = self._lifecycle.killer(child, "stalled and was killed") if is_replaced else None
        path = self._take_snapshot("stall", stall.process, stall.text, replace)
        snapshot = f"; snapshot: {path}" if path else ""
        end = "; it is replaced (--on-stall restart)" if is_replaced else ""
        self._console.say_of(stall.process, f"STALL ({stall.kind}): {stall.text}{end}{snapshot}", "error")
