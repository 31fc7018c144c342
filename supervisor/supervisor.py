"""The run from the first process's start to the last one's end: boot, watch, replace, drain, stop.

`run` reads as the life of a server; `_turn` is the one place where the launcher waits.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from messages.channels import ControlServer, Waiter
from messages.config import RunConfig
from messages.control import (
    Beat,
    BootFailed,
    Drain,
    Drained,
    Hello,
    PhaseReport,
    ProcessStatus,
    Ready,
    Refused,
    Stop,
    ToLauncher,
    Welcome,
)
from messages.errors import SluiceError
from messages.run_dir import RunDir
from supervisor.admission import find_reason_to_refuse
from supervisor.child import Child, Command
from supervisor.console import Console
from supervisor.endings import quote, tell_end, tell_fatal_end
from supervisor.restarts import NoRestartError, Restarts
from supervisor.signals import STOP_SIGNALS, SignalPipe
from supervisor.status_board import StatusBoard

FRONT = "frontend"
"""The process at the door: it alone inherits the listening socket, drains, and hears the process table."""

TURN_S = 1.0
"""Longest wait of the loop; boot time limits and hangs are checked as often."""

STOP_TIMEOUT_S = 3.0
FRONT_STOP_TIMEOUT_S = 2.0
"""What the frontend gets, before the others are stopped, to end the streams of its clients."""

SAME_WISH_S = 0.3
"""Stop signals closer together than this are one: `timeout`, for one, sends its signal twice."""

HURRIED_STOP_TIMEOUT_S = 1.0
DRAIN_MARGIN_S = 1.0
LAST_WORDS_S = 0.2
"""How long the loop collects what a dead process has still written and reported."""


class RunFailedError(SluiceError):
    """A process could not start, or has died for good, so the run ends."""


@dataclass(frozen=True)
class Site:
    """Where a run takes place: what the launcher has opened for it before any process starts."""

    run_dir: RunDir
    listener: socket.socket
    signals: SignalPipe


class Supervisor:
    """Owns the child processes of one run and the launcher's end of the control plane."""

    def __init__(self, settings: RunConfig, commands: Iterable[Command], site: Site, console: Console):
        self._settings = settings
        self._site = site
        self._console = console
        self._children = {command.name: Child(command) for command in commands}
        self._board = StatusBoard(list(self._children), settings.hang_timeout_s)
        self._restarts = Restarts(settings)
        self._control: ControlServer[ToLauncher] = ControlServer(site.run_dir.socket("launcher"), ToLauncher)
        self._waiter = Waiter()
        self._waiter.add_channel(self._control)
        self._waiter.add_descriptor(site.signals.fileno())
        self._num_stop_signals = 0
        self._last_stop_signal_s = float("-inf")
        self._is_draining = False
        self._is_stopping = False
        self._drained: Drained | None = None
        self._last_turn_ns = time.monotonic_ns()

    def run(self, on_ready: Callable[[], None]) -> int:
        """Starts the processes, calls `on_ready` when all serve, replaces those that die, and stops all when told to.

        Returns the exit code: 0 after a stop signal, 130 after a second one, 1 where a process failed for good.
        """
        has_failed = False
        try:
            for child in self._children.values():
                self._start(child)
            self._turn_until(self._board.is_ready)
            if not self._num_stop_signals:
                self._console.end_progress()
                self._publish(at_once=True)  # the frontend opens its door when it hears that all are ready
                on_ready()
                self._turn_until(lambda: False)
                self._drain()
        except RunFailedError as failure:
            has_failed = True
            self._console.end_progress()
            self._console.say(f"\n{failure}")
        finally:
            self._stop()
        return 1 if has_failed else 130 if self._num_stop_signals > 1 else 0

    def _start(self, child: Child) -> None:
        """Starts a process, for the first time or again. Raises `RunFailedError` where it cannot be started at all."""
        if child.is_external:
            self._console.say_of(child.name, f"waiting: start it by hand\n  {child.by_hand(self._site.run_dir.path)}")
            return
        is_front = child.name == FRONT
        self._console.begin_process(child.name)
        try:
            child.spawn(self._site.run_dir.path, self._site.listener.fileno() if is_front else None)
        except OSError as error:
            child.boot_error = str(error)
            self._plan_restart(child, was_starting=True)
            return
        self._site.run_dir.pid_file(child.name).write_text(f"{child.pid}", encoding="ascii")
        self._waiter.add_descriptor(child.descriptor)
        self._note_start(child)

    def _note_start(self, child: Child) -> None:
        self._board.started(child.name, child.pid, child.incarnation)
        self._publish(at_once=True)

    def _turn_until(self, is_over: Callable[[], bool], deadline_s: float = float("inf")) -> None:
        """Turns until `is_over`, until the deadline (`time.monotonic()`), or until another stop signal."""
        num_before = self._num_stop_signals
        while not is_over() and self._num_stop_signals == num_before:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self._turn(left_s)

    def _turn(self, timeout_s: float) -> None:
        """Waits for whatever comes first, and deals with all that has come."""
        due_s = min(self._table_due_in_s(), self._restarts.due_in_s(time.monotonic()))
        readable = self._waiter.wait(min(timeout_s, TURN_S, due_s))
        self._count_stop_signals()
        for child in self._children.values():
            if child.descriptor in readable:
                self._show_output(child)
        self._take_reports()
        for child in self._children.values():
            if child.notice_end():
                self._on_end(child)
        for name in self._restarts.take_due(time.monotonic()):
            self._start(self._children[name])
        self._check_times()
        self._publish()
        self._console.flush()

    def _count_stop_signals(self) -> None:
        has_come = any(number in STOP_SIGNALS for number in self._site.signals.take())
        now_s = time.monotonic()
        if has_come and now_s - self._last_stop_signal_s > SAME_WISH_S:
            self._num_stop_signals += 1
            self._last_stop_signal_s = now_s

    def _show_output(self, child: Child) -> None:
        for line in child.read_output():
            self._console.say_of(child.name, line)
        if child.is_silent:
            self._forget_descriptor(child)

    def _forget_descriptor(self, child: Child) -> None:
        if child.descriptor >= 0:
            self._waiter.remove_descriptor(child.descriptor)
            child.release()

    def _take_reports(self) -> None:
        for name, message in self._control.take():
            child = self._children.get(name)
            if isinstance(message, Hello):
                self._answer_hello(name, message)
            elif child is not None and child.is_welcome:
                self._take_report(child, message)

    def _answer_hello(self, name: str, hello: Hello) -> None:
        reason = find_reason_to_refuse(self._children, name, hello)
        if self._is_stopping:
            reason = reason or "the server is stopping"
        if reason:
            self._console.say(f"refused a process (pid {hello.pid}) that called itself {name}: {reason}")
            self._control.send_to_pid(name, hello.pid, Refused(reason))
            return
        child = self._children[name]
        if child.pid == 0:
            child.adopt(hello.pid)
            if child.descriptor >= 0:
                self._waiter.add_descriptor(child.descriptor)
            self._note_start(child)
        child.is_welcome = True
        self._control.admit(name, hello.pid)
        self._control.send(name, Welcome(child.incarnation))
        if name == FRONT:
            self._publish(at_once=True)

    def _take_report(self, child: Child, message: PhaseReport | Ready | BootFailed | Beat | Drained) -> None:
        match message:
            case PhaseReport(text, fraction):
                if self._board.phase(child.name, text, fraction):
                    self._console.say_of(child.name, text)
                if fraction is not None:
                    self._console.progress(child.name, text, fraction)
            case Ready():
                self._board.ready(child.name)
                self._restarts.note_ready(child.name, time.monotonic())
                self._publish(at_once=True)
                self._console.say_of(child.name, f"ready in {time.monotonic() - child.started_s:.1f} s")
            case BootFailed(text):
                child.boot_error = text
                if self._is_first_start(child) and not self._is_stopping:
                    raise RunFailedError(f"{child.name} cannot start: {text}")
            case Beat():
                if self._board.beat(child.name, message):
                    self._console.say_of(child.name, "answers again")
            case Drained():
                self._drained = message

    def _is_first_start(self, child: Child) -> bool:
        """Tells whether a failure of this start is the run's failure. One that was started by hand may try again."""
        return self._board.status(child.name).num_restarts == 0 and not child.is_external

    def _on_end(self, child: Child) -> None:
        self._site.run_dir.pid_file(child.name).unlink(missing_ok=True)
        if self._is_stopping:
            self._board.ended(child.name)
            return
        self._collect_last_words(child)
        self._forget_descriptor(child)
        self._console.end_progress()
        was_starting = self._board.status(child.name).state == "starting"
        child.is_welcome = False
        self._board.ended(child.name)
        self._plan_restart(child, was_starting)

    def _plan_restart(self, child: Child, was_starting: bool) -> None:
        """Has a dead process come back. Raises `RunFailedError` where it must not."""
        if was_starting and self._is_first_start(child):
            self._give_up(child, was_starting)
        if child.name == FRONT and self._is_draining:  # nobody is left to whom the others could answer
            self._give_up(child, was_starting)
        if child.is_external and (was_starting or self._restarts.is_wanted(child.name)):
            self._tell_restart(child, tell_end(child, was_starting))
            self._start(child)
            return
        try:
            restart = self._restarts.note_death(child.name, time.monotonic())
        except NoRestartError as refusal:
            self._give_up(child, was_starting, f"\n{refusal}")
        else:
            self._tell_restart(child, f"{tell_end(child, was_starting)}; {restart.text}")

    def _tell_restart(self, child: Child, text: str) -> None:
        self._board.restarting(child.name)
        self._publish(at_once=True)
        self._console.say_of(child.name, text)

    def _give_up(self, child: Child, was_starting: bool, why: str = "") -> NoReturn:
        self._publish(at_once=True)
        raise RunFailedError(f"{tell_fatal_end(child, was_starting)}{why}")

    def _collect_last_words(self, child: Child) -> None:
        """Takes what a dead process has still written and, where it was starting, reported: the reason is in it."""
        waiter = Waiter()
        waiter.add_channel(self._control)
        deadline = time.monotonic() + LAST_WORDS_S
        with contextlib.suppress(RunFailedError):
            while time.monotonic() < deadline:
                self._take_reports()
                self._show_output(child)
                is_explained = child.boot_error or self._board.status(child.name).state != "starting"
                if is_explained and (child.is_silent or child.is_external):
                    break
                waiter.wait(LAST_WORDS_S / 20)

    def _check_times(self) -> None:
        now_ns = time.monotonic_ns()
        is_fresh = now_ns - self._last_turn_ns < 3 * TURN_S * 1e9
        self._last_turn_ns = now_ns
        if self._is_stopping or not is_fresh:  # after a stop of the launcher itself (Ctrl-Z) everybody looks hung
            return
        for status in self._board.find_newly_hung(now_ns):
            self._deal_with_hang(status, now_ns)
        for child in self._children.values():
            stuck_s = self._board.seconds_without_progress(child.name, now_ns)
            if stuck_s > self._settings.boot_timeout_s and not child.is_external:
                self._end_stuck_start(child, stuck_s)

    def _deal_with_hang(self, status: ProcessStatus, now_ns: int) -> None:
        """Kills a hung process where it can be replaced; its end brings the replacement."""
        child = self._children[status.name]
        age_s = (now_ns - status.beat_ns) / 1e9
        what = "in one step" if status.busy_since_ns else "idle"
        is_replaced = self._restarts.is_wanted(child.name) and not child.is_external
        end = ", so it is killed" if is_replaced else ""
        self._console.say_of(child.name, f"hangs: no heartbeat for {age_s:.0f} s, {what}{end}")
        if is_replaced:
            child.kill(why="hung and was killed")

    def _end_stuck_start(self, child: Child, stuck_s: float) -> None:
        phase = self._board.status(child.name).phase
        child.boot_error = f"no progress for {stuck_s:.0f} s in phase {phase!r} (--boot-timeout-s)"
        if self._is_first_start(child):
            raise RunFailedError(f"{child.name} cannot start: {child.boot_error}{quote(child.last_lines)}")
        child.kill()

    def _can_front_hear(self) -> bool:
        front = self._children.get(FRONT)
        return front is not None and front.is_welcome

    def _table_due_in_s(self) -> float:
        """Returns when the frontend must hear the process table next: never while it is not there."""
        due_s = self._board.due_in_s(time.monotonic_ns()) if self._can_front_hear() else None
        return float("inf") if due_s is None else due_s

    def _publish(self, at_once: bool = False) -> None:
        if self._can_front_hear() and (at_once or self._table_due_in_s() == 0):
            self._control.send(FRONT, self._board.publish(time.monotonic_ns()))

    def _drain(self) -> None:
        """Has the frontend take nothing new and waits for its last request, or for its time to be over."""
        if not self._can_front_hear() or self._num_stop_signals > 1:
            return
        timeout_s = self._settings.drain_timeout_s
        self._console.say(f"draining: running requests may take {timeout_s:g} s; Ctrl-C again stops at once")
        self._is_draining = True
        self._control.send(FRONT, Drain(timeout_s))
        self._turn_until(lambda: self._drained is not None, time.monotonic() + timeout_s + DRAIN_MARGIN_S)
        num_unfinished = self._drained.num_unfinished if self._drained else 0
        if num_unfinished:
            self._console.say(f"{num_unfinished} requests did not finish in time")

    def _stop(self) -> None:
        """Ends every process: the door first, then what is behind it; whoever does not go is killed."""
        self._is_stopping = True
        self._restarts.cancel()
        self._site.listener.close()
        self._stop_group([child for child in self._children.values() if child.name == FRONT], FRONT_STOP_TIMEOUT_S)
        self._stop_group(list(self._children.values()), STOP_TIMEOUT_S)
        for child in self._children.values():
            if child.pid and child.is_external:
                self._console.say_of(child.name, "still runs; it ends when it notices that the launcher is gone")
            elif child.pid:
                self._console.say_of(child.name, "does not stop, so it is killed")
                child.kill()
                child.wait(STOP_TIMEOUT_S)
            self._show_output(child)
            self._forget_descriptor(child)
        self._control.close()

    def _stop_group(self, group: list[Child], timeout_s: float) -> None:
        for child in group:
            self._ask_to_stop(child)
        patience_s = min(timeout_s, HURRIED_STOP_TIMEOUT_S) if self._num_stop_signals > 1 else timeout_s
        self._turn_until(lambda: not any(child.pid for child in group), time.monotonic() + patience_s)

    def _ask_to_stop(self, child: Child) -> None:
        if not child.pid:
            return
        if self._board.status(child.name).state == "starting" and not child.is_external:
            child.kill()  # it may be deep in a load and has nothing to lose
        else:
            self._control.send(child.name, Stop())
