"""The launcher's loop: boot, watch, replace, drain, stop.

`run` reads as the life of a server; `_turn` is the one place where the launcher waits.

Standbys for the only engine: when it dies, no request waits for an import of torch (`--no-standby` disables it).

Time limits: a process that hangs is killed and replaced, one whose start is stuck has failed.
"""

import time
from collections.abc import Callable, Iterable

from messages.channels import Waiter
from messages.config.server import RunConfig
from messages.control.processes import SUCCESSOR, ProcessStatus, kind_of
from messages.engine_names import SCHEDULER
from runtime.extras import load_parts
from runtime.forked_process import is_fork
from supervisor.admin.server import AdminServer
from supervisor.admin.snapshots import Snapshots
from supervisor.child import Child, Command
from supervisor.console import Console
from supervisor.early_scheduler import EarlyScheduler
from supervisor.endings import quote
from supervisor.lifecycle import Lifecycle, RunFailedError, TakeSnapshot
from supervisor.process_files import run_state_of
from supervisor.process_group import ProcessGroup, Site
from supervisor.shutdown import Shutdown
from supervisor.signals import STOP_SIGNALS
from supervisor.stalls import StallDetector

MAX_GAP_S = 3.0
"""Between two looks. After a longer one the launcher itself was stopped (Ctrl-Z), and every process looks hung."""

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
            self._stalls.forget()
        if self._group.is_stopping or not is_fresh:
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


TURN_S = 1.0
"""Longest wait of the loop; boot time limits and hangs are checked as often."""

SAME_WISH_S = 0.3
"""Stop signals closer together than this are one: `timeout`, for one, sends its signal twice."""


class Supervisor:
    """One run, from the first process's start to the last one's end."""

    def __init__(self, settings: RunConfig, commands: Iterable[Command], site: Site, console: Console):
        self._settings = settings
        self._site = site
        self._console = console
        self._waiter = Waiter()
        self._waiter.add_descriptor(site.signals.fileno())
        self._group = ProcessGroup(commands, site, self._waiter, settings.hang_timeout_s)
        self._snapshots = Snapshots(site.run_dir, self._group, console)
        self._lifecycle = Lifecycle(settings, self._group, console, self._snapshots.take)
        self._watch = Watch(settings, self._lifecycle, console, self._snapshots.take)
        self._standby = Standby(settings, self._lifecycle)
        self._shutdown = Shutdown(self._lifecycle, console, self)
        self._admin = AdminServer(
            site.run_dir, self._lifecycle, self._shutdown, self._snapshots, settings.drain_timeout_s
        )
        self._waiter.add_channel(self._admin.channel)
        config = site.run_dir.read_config()
        self._parts = [
            module.make_part(config, self._group, self._admin.begin, console)
            for module in load_parts(config, "launcher")
        ]
        self._num_stop_signals = 0
        self._last_stop_signal_s = float("-inf")

    @property
    def is_hurried(self) -> bool:
        return self._num_stop_signals > 1

    def run(self, on_ready: Callable[[], None]) -> int:
        """Starts the processes, calls `on_ready` when all serve, replaces those that die, and stops all on request.

        Returns the exit code: 0 after a stop signal, 130 after a second one, 1 if a process failed for good. Raises
        `RunFailedError` if a shorter context would have had enough memory.
        """
        has_failed = False
        try:
            self._lifecycle.start_all()
            self._group.memory_files.make_weight_memory()
            if self._site.early_scheduler is not None:
                self._site.early_scheduler.end()  # no process used it, as with --external scheduler
            self.turn_until(self._group.is_ready)
            if not self._num_stop_signals:
                self._console.end_progress()
                self._group.record_started()
                on_ready()
                self.turn_until(lambda: self._shutdown.is_requested)
                self._shutdown.drain(self._settings.drain_timeout_s)
        except RunFailedError as failure:
            if failure.fitting_len:
                raise
            has_failed = True
            self._console.end_progress()
            self._console.show(f"\n{failure}", "error")
        finally:
            self._site.listener.close()
            self._admin.fail_open()
            self._snapshots.close()
            self._standby.close()
            self._shutdown.stop()
            self._admin.close()
        return 1 if has_failed else 130 if self.is_hurried else 0

    def turn_until(self, is_over: Callable[[], bool], deadline_s: float = float("inf")) -> None:
        """Turns until `is_over`, until the deadline (`time.monotonic()`), or until another stop signal."""
        num_before = self._num_stop_signals
        while not is_over() and self._num_stop_signals == num_before:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self._turn(left_s)

    def _turn(self, timeout_s: float) -> None:
        """Waits for the next event, then handles all that have arrived."""
        due_in_s = min(self._lifecycle.due_in_s(), self._admin.due_in_s(), self._snapshots.due_in_s())
        readable = self._waiter.wait(min(timeout_s, TURN_S, due_in_s))
        self._count_stop_signals()
        self._lifecycle.follow(readable)
        self._watch.look()
        self._standby.look()
        for part in self._parts:
            part.look()
        self._snapshots.follow()
        self._admin.follow()
        self._group.publish()
        self._console.flush()

    def _count_stop_signals(self) -> None:
        has_come = any(number in STOP_SIGNALS for number in self._site.signals.read())
        now_s = time.monotonic()
        if has_come and now_s - self._last_stop_signal_s > SAME_WISH_S:
            self._num_stop_signals += 1
            self._last_stop_signal_s = now_s
