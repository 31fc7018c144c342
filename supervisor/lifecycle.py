"""Starts each process, follows its reports, and handles its end."""

import contextlib
import time
from collections.abc import Callable
from typing import NoReturn

from messages.config.server import RunConfig
from messages.control.admin import Ask, InstructionDone
from messages.control.processes import (
    SUCCESSOR,
    Beat,
    BootFailed,
    Drain,
    Drained,
    Hello,
    PhaseReport,
    Ready,
    StandingBy,
    Welcome,
    kind_of,
)
from messages.engine_names import SCHEDULER
from messages.errors import BootError
from supervisor.admission import find_reason_to_refuse
from supervisor.child import END_LOOK_S, Child, Command
from supervisor.console import Console
from supervisor.early_scheduler import EarlyScheduler
from supervisor.endings import describe_exit, describe_fatal_exit
from supervisor.process_group import ProcessGroup, receives_process_table
from supervisor.restarts import NoRestartError, Restarts

LAST_WORDS_S = 0.2
"""The time for which the loop still collects the output and reports of a dead process."""

EXPLANATION_S = 2.0
"""The same for a process that exited with an error: on a busy machine its explanation may arrive late."""

TakeSnapshot = Callable[[str, str, str, Callable[[], None] | None], object]
"""Takes cause, process, text and the next action; returns the path of the snapshot, if one is taken."""

ChildMessage = PhaseReport | StandingBy | Ready | BootFailed | Beat | Drained | InstructionDone | Ask


class RunFailedError(BootError):
    """A process could not start, or has died for good, so the run ends."""


class Lifecycle:
    """Starts the processes of `group`, follows their reports, and replaces those that die."""

    def __init__(self, settings: RunConfig, group: ProcessGroup, console: Console, take_snapshot: TakeSnapshot):
        self.group = group
        self._console = console
        self._take_snapshot = take_snapshot
        self.restarts = Restarts(settings)
        self.spares: list[EarlyScheduler] = []
        """Processes that have imported torch, for the next restart of an engine with several ranks."""

    def start_all(self) -> None:
        """Starts all processes, the schedulers first: they take the longest."""
        for child in sorted(self.group, key=lambda child: kind_of(child.name) != SCHEDULER):
            if self.group.leader_of(child) is child:
                self.start(child)

    def start(self, child: Child, *, may_use_spares: bool = False) -> None:
        """Starts a process, for the first time or again, a scheduler with its ranks.

        Spares may run older code than is installed now, so a restart on command does not use them. Raises
        `RunFailedError` if it cannot be started at all.
        """
        if child.is_external:
            self._console.show_of(child.name, f"waiting: start it by hand\n  {self.group.how_to_start(child)}")
            return
        self._console.begin_process(child.name)
        uses_spare = may_use_spares and self.spares and not child.command.is_remote
        try:
            self.group.spawn(child, self.spares.pop() if uses_spare else None)
        except OSError as error:
            child.boot_error, child.was_starting = str(error), True
            self._continue_after(child)
            return
        if child.is_early:
            self._record_report(child, PhaseReport("importing torch"))
        for rank in self.group.ranks_of(child):
            self.start(rank, may_use_spares=may_use_spares)

    def replace_ranks(self, child: Child) -> None:
        """Starts the ranks of the process that takes the place of `child`, which has ended."""
        for rank in self.group.ranks_of(child):
            self.group.board.restarting(rank.name)
            self.start(rank)

    def add(self, command: Command) -> Child:
        """Starts one more process; it leaves the group if it ends before it has served, or on command."""
        child = Child(command)
        child.is_on_trial = True
        self.group.add(child)
        self.start(child)
        return child

    def start_successor(self, child: Child, is_spare: bool = False) -> Child:
        """Starts the replacement for `child` while `child` runs; it is in the group until it ends.

        With `is_spare` it takes over only if `child` dies.
        """
        successor = Child.successor_of(child)
        successor.is_spare = is_spare
        self.group.add(successor, self.group.status(child).num_restarts + 1)
        self.start(successor)
        return successor

    def follow(self, readable: set[int]) -> None:
        """Handles all that has arrived: output, reports, ends, and restarts that are due."""
        for child in self.group:
            if child.descriptor in readable:
                self.show_output(child)
        self._receive_reports()
        for child in self.group:
            if child.notice_end():
                self._on_end(child)
        for name in self.restarts.pop_due(time.monotonic()):
            child = self.group.find(name)
            assert child is not None
            spare = self.group.find_spare(child)
            if spare is not None:
                self._console.show_of(name, "the process that stood by takes over")
                self.group.give_place(spare, child)
            else:
                self.start(child, may_use_spares=kind_of(name) == SCHEDULER)

    def due_in_s(self) -> float:
        """Seconds until a restart, a table for the frontends or a check of an ending process is due."""
        is_one_ending = any(child.pid and child.is_silent for child in self.group)
        ending_s = END_LOOK_S if is_one_ending else float("inf")
        return min(ending_s, self.group.table_due_in_s(), self.restarts.due_in_s(time.monotonic()))

    def show_output(self, child: Child) -> None:
        self._console.relay(child.name, child.latest_pid, child.read_output())
        if child.is_silent:
            self.group.close_output(child)

    def _receive_reports(self) -> None:
        for name, message in self.group.control.receive(from_anybody=Hello):
            child = self.group.find(name)
            if isinstance(message, Hello):
                self._answer_hello(name, message)
            elif child is not None and child.is_welcome:
                self._record_report(child, message)

    def _answer_hello(self, name: str, hello: Hello) -> None:
        group = self.group
        child = group.find(name)
        reason = find_reason_to_refuse(child, group.names(), hello)
        if group.is_stopping:
            reason = reason or "the server is stopping"
        if reason or child is None:
            self._console.show(f"refused a process (pid {hello.pid}) that called itself {name}: {reason}", "warning")
            group.control.refuse(name, hello.pid, reason or "")
            return
        if child.pid == 0:
            group.adopt(child, hello.pid)
        child.is_welcome = True
        group.control.welcome(name, hello.pid, Welcome(child.incarnation, child.uid_block))
        if receives_process_table(child):
            group.publish(at_once=True)

    def _record_report(self, child: Child, message: ChildMessage) -> None:
        board = self.group.board
        match message:
            case PhaseReport(text, fraction):
                if board.phase(child.name, text, fraction):
                    self._console.show_of(child.name, text)
                if fraction is not None:
                    self._console.progress(child.name, text, fraction)
            case StandingBy():
                board.standing_by(child.name)
                self._console.show_of(child.name, f"stands by after {time.monotonic() - child.started_s:.1f} s")
            case Ready():
                self._record_ready(child, message)
            case BootFailed(text, fitting_len):
                child.boot_error = text
                if self.is_first_start(child) and not self.group.is_stopping:
                    raise RunFailedError(text if fitting_len else f"{child.name} cannot start: {text}", fitting_len)
            case Beat():
                if board.beat(child.name, message):
                    self._console.show_of(child.name, "answers again")
            case Drained() | InstructionDone() | Ask():
                self.group.control.record(child.name, message)

    def _record_ready(self, child: Child, message: Ready) -> None:
        self.group.board.ready(child.name, message)
        child.is_on_trial = False
        self.restarts.record_ready(child.name, time.monotonic())
        self.group.publish(at_once=True)
        if child.is_front and self.group.is_draining:
            self.group.control.send(child.name, Drain(0.0))
        without = f", degraded: {message.degraded}" if message.degraded else ""
        text = f"ready in {time.monotonic() - child.started_s:.1f} s{without}"
        self._console.show_of(child.name, text, "warning" if message.degraded else "info")

    def is_first_start(self, child: Child) -> bool:
        """True if the run fails with this start. A process that was started by hand may try again."""
        is_first = self.group.status(child).num_restarts == 0 and not child.is_on_trial
        return is_first and not child.is_external

    def is_replaced(self, child: Child) -> bool:
        """True if the launcher restarts this process when it dies."""
        return self.restarts.is_requested(child.name) and not child.is_external

    def killer(self, child: Child, why: str) -> Callable[[], None]:
        """Returns a function that kills this incarnation; the next one is certain from now on."""
        pid = child.pid
        self.group.board.killed(child.name)

        def kill() -> None:
            if child.pid == pid:
                child.kill(why)

        return kill

    def _on_end(self, child: Child) -> None:
        group = self.group
        status = group.status(child)
        child.was_starting = status.state == "starting"
        if group.can_move_requests(child):
            group.report_death(child)
        if status.is_up and not (child.has_been_notified or status.is_killed or group.is_stopping):
            path = self._take_snapshot("crash", child.name, child.ending, None)
            if path:
                self._console.show_of(child.name, f"has ended; snapshot: {path}", "error")
        group.remove_files(child)
        if group.is_stopping:
            group.board.ended(child.name)
            return
        self._collect_last_words(child)
        group.close_output(child)
        self._console.end_progress()
        child.is_welcome = False
        group.board.ended(child.name)
        self._continue_after(child)

    def _continue_after(self, child: Child) -> None:
        """Handles the end of a process. The processes of an engine end together; the last one counts.

        Raises `RunFailedError` if the run must end.
        """
        has_left = child.command.is_remote and not child.boot_error  # another machine may join
        if child.was_starting and self.is_first_start(child) and not (has_left or self.group.status(child).is_killed):
            self._give_up(child, child.was_starting)
        leader = self.group.leader_of(child)
        if leader is not child:
            level = "info" if leader.has_been_notified else "error"
            self._console.show_of(child.name, describe_exit(child, child.was_starting), level)
        living = [one for one in (leader, *self.group.ranks_of(leader)) if one.pid]
        for one in living:
            if not self.group.status(one).is_killed:
                self.killer(one, f"was ended with {child.name}, which {child.ending}")()
        if not living:
            self._replace_or_forget(leader)

    def _replace_or_forget(self, child: Child) -> None:
        group, was_starting = self.group, child.was_starting
        successor = group.find(child.name + SUCCESSOR)
        has_successor = successor is not None and not successor.is_spare
        is_on_trial = any(one.is_on_trial for one in (child, *group.ranks_of(child)))
        if child.is_passing or is_on_trial or (group.status(child).is_leaving and not has_successor):
            has_left = child.has_been_notified and not was_starting
            self._console.show_of(child.name, "has left" if has_left else describe_exit(child, was_starting))
            group.remove(child)
        elif has_successor:
            end = "gives way" if child.has_been_notified else describe_exit(child, was_starting)
            self._console.show_of(child.name, f"{end}; its successor takes over")
            group.board.waiting_for_successor(child.name)
        else:
            self.plan_restart(child, was_starting)

    def _collect_last_words(self, child: Child) -> None:
        """Reads the last output of a dead process and, if it was starting, its last reports, for the reason."""
        deadline = time.monotonic() + (EXPLANATION_S if child.gave_up else LAST_WORDS_S)
        with contextlib.suppress(RunFailedError):
            while time.monotonic() < deadline:
                self._receive_reports()
                self.show_output(child)
                is_explained = child.boot_error or self.group.status(child).state != "starting"
                if is_explained and (child.is_silent or child.is_external):
                    break
                self.group.control.wait(LAST_WORDS_S / 20)

    def plan_restart(self, child: Child, was_starting: bool) -> None:
        """Schedules the restart of a dead process. Raises `RunFailedError` if it must stay dead."""
        is_last_frontend = child.is_front and not any(frontend.pid for frontend in self.group.frontends())
        if is_last_frontend and self.group.is_draining:  # no frontend is left to receive the replies of the others
            self._give_up(child, was_starting)
        if child.is_external and (was_starting or self.restarts.is_requested(child.name)):
            self._report_restart(child, describe_exit(child, was_starting))
            self.start(child)
            return
        engine = (child, *self.group.ranks_of(child))
        if any(one.was_starting and (one.boot_error or one.gave_up) for one in engine):
            for one in engine:  # perhaps there was too little memory next to a full cache
                self.group.memory_files.clear(one.name)
        has_spare = self.group.find_spare(child) is not None
        try:
            restart = self.restarts.record_death(child.name, time.monotonic(), has_spare)
        except NoRestartError as refusal:
            self._give_up(child, was_starting, f"\n{refusal}")
        else:
            self._report_restart(child, f"{describe_exit(child, was_starting)}; {restart.text}")

    def _report_restart(self, child: Child, text: str) -> None:
        for one in (child, *self.group.ranks_of(child)):
            self.group.board.restarting(one.name)
        self.group.publish(at_once=True)
        self._console.show_of(child.name, text, "error")

    def _give_up(self, child: Child, was_starting: bool, why: str = "") -> NoReturn:
        self.group.publish(at_once=True)
        raise RunFailedError(f"{describe_fatal_exit(child, was_starting)}{why}")
