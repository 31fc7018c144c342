"""The processes of a run: how each one starts, what it reports, and what follows when it ends."""

import contextlib
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from messages.channels import ControlServer, Waiter
from messages.config import RunConfig
from messages.control import (
    PREDECESSOR,
    SUCCESSOR,
    Beat,
    BootFailed,
    Drain,
    Drained,
    Hello,
    PhaseReport,
    Ready,
    Refused,
    StandingBy,
    Stop,
    TakeOver,
    ToLauncher,
    Welcome,
)
from messages.errors import SluiceError
from messages.orders import Ask, InstructionDone
from messages.uids import frontend_socket
from runtime.run_dir import RunDir
from supervisor.admin.tasks import OrderFailedError
from supervisor.admission import find_reason_to_refuse
from supervisor.child import Child, Command
from supervisor.console import Console
from supervisor.endings import tell_end, tell_fatal_end
from supervisor.instructions import Instructions
from supervisor.restarts import NoRestartError, Restarts
from supervisor.signals import SignalPipe
from supervisor.status_board import StatusBoard

LAST_WORDS_S = 0.2
"""How long the loop collects what a dead process has still written and reported."""


Report = PhaseReport | StandingBy | Ready | BootFailed | Beat | Drained | InstructionDone | Ask


class RunFailedError(SluiceError):
    """A process could not start, or has died for good, so the run ends."""


@dataclass(frozen=True)
class Site:
    """Where a run takes place: what the launcher has opened for it before any process starts."""

    run_dir: RunDir
    listener: socket.socket
    signals: SignalPipe


class Crew:
    """Owns the child processes of one run and the launcher's end of the control plane. Nothing here waits."""

    def __init__(self, settings: RunConfig, commands: Iterable[Command], site: Site, console: Console):
        self._site = site
        self._console = console
        self.children = {command.name: Child(command) for command in commands}
        self.board = StatusBoard(list(self.children), settings.hang_timeout_s)
        self.restarts = Restarts(settings)
        self.control: ControlServer[ToLauncher] = ControlServer(site.run_dir.socket("launcher"), ToLauncher)
        self.instructions = Instructions(self.control)
        self.waiter = Waiter()
        self.waiter.add_channel(self.control)
        self.waiter.add_descriptor(site.signals.fileno())
        self.has_started = False
        """Every process has served at once."""
        self.is_draining = False
        self.is_stopping = False
        self.drained: dict[str, int] = {}
        """By process that has drained: the requests that are left in it."""
        self._asks: list[tuple[bytes, Ask]] = []
        self._num_front_starts = 0

    def fronts(self) -> list[Child]:
        """Returns the frontends that have a place of their own, whether they run now or not."""
        return [child for child in self.children.values() if child.is_front and not child.is_passing]

    def child(self, name: str) -> Child:
        """Returns the process that an order is about. Raises `OrderFailedError` where there is none of that name."""
        if name not in self.children:
            raise OrderFailedError("unknown", f"there is no process {name!r}; they are {', '.join(self.children)}")
        return self.children[name]

    def take_asks(self) -> list[tuple[bytes, Ask]]:
        """Returns, and forgets, the orders that processes have brought, each with the connection to answer."""
        asks, self._asks = self._asks, []
        return asks

    def start(self, child: Child) -> None:
        """Starts a process, for the first time or again. Raises `RunFailedError` where it cannot be started at all."""
        if child.is_external:
            self._console.say_of(child.name, f"waiting: start it by hand\n  {child.by_hand(self._site.run_dir.path)}")
            return
        self._console.begin_process(child.name)
        try:
            child.spawn(self._site.run_dir.path, self._site.listener.fileno() if child.is_front else None)
        except OSError as error:
            child.boot_error = str(error)
            if child.is_successor or child.is_on_trial:
                self.remove(child)
            else:
                self.plan_restart(child, was_starting=True)
            return
        self._site.run_dir.pid_file(child.name).write_text(f"{child.pid}", encoding="ascii")
        self.waiter.add_descriptor(child.descriptor)
        self._note_start(child)

    def add(self, command: Command) -> Child:
        """Starts one process more; it is in `children` until it ends without having served, or leaves by order."""
        child = Child(command)
        child.is_on_trial = True
        self.children[child.name] = child
        self.board.add(child.name)
        self.start(child)
        return child

    def start_successor(self, child: Child) -> Child:
        """Starts, beside `child`, the process that will take its place; it is in `children` until it ends."""
        successor = Child.successor_of(child)
        self.children[successor.name] = successor
        self.board.add(successor.name, self.board.status(child.name).num_restarts + 1)
        self.start(successor)
        return successor

    def give_place(self, successor: Child, child: Child) -> None:
        """Lets `successor`, which stands by, have the name of `child` from now on.

        A `child` that still lives, and finishes what it has begun, is called its predecessor.
        """
        name = child.name
        if child.pid:
            self._rename(child, name + PREDECESSOR)
        else:
            self.control.forget(name)
        self._rename(successor, name)
        self.board.taking_over(name)
        self.publish(at_once=True)  # a frontend must know the others before its first connection
        self.control.send(name, TakeOver(successor.incarnation))

    def remove(self, child: Child) -> None:
        """Forgets a process that has ended and will not be started again."""
        del self.children[child.name]
        self.board.remove(child.name)
        self.control.forget(child.name)
        self.publish(at_once=True)

    def _rename(self, child: Child, name: str) -> None:
        self._site.run_dir.pid_file(child.name).rename(self._site.run_dir.pid_file(name))
        self.control.rename(child.name, name)
        self.board.rename(child.name, name)
        del self.children[child.name]
        child.name = name
        self.children[name] = child

    def follow(self, readable: set[int]) -> None:
        """Deals with all that has come: output, reports, ends, and the time for a restart."""
        for child in list(self.children.values()):
            if child.descriptor in readable:
                self.show_output(child)
        self._take_reports()
        for child in list(self.children.values()):
            if child.notice_end():
                self._on_end(child)
        for name in self.restarts.take_due(time.monotonic()):
            self.start(self.children[name])

    def due_in_s(self) -> float:
        """Returns when the next restart or the frontend's next table is due; never where nothing is to be done."""
        return min(self._table_due_in_s(), self.restarts.due_in_s(time.monotonic()))

    def _note_start(self, child: Child) -> None:
        if child.is_front:
            self._num_front_starts += 1
            child.uid_block = self._num_front_starts
        self.board.started(child.name, child.pid, child.incarnation, child.uid_block)
        self.publish(at_once=True)

    def show_output(self, child: Child) -> None:
        for line in child.read_output():
            self._console.say_of(child.name, line)
        if child.is_silent:
            self.forget_descriptor(child)

    def forget_descriptor(self, child: Child) -> None:
        if child.descriptor >= 0:
            self.waiter.remove_descriptor(child.descriptor)
            child.release()

    def _take_reports(self) -> None:
        for name, message in self.control.take(from_anybody=Hello):
            child = self.children.get(name)
            if isinstance(message, Hello):
                self._answer_hello(name, message)
            elif child is not None and child.is_welcome:
                self._take_report(child, message)

    def _answer_hello(self, name: str, hello: Hello) -> None:
        reason = find_reason_to_refuse(self.children, name, hello)
        if self.is_stopping:
            reason = reason or "the server is stopping"
        if reason:
            self._console.say(f"refused a process (pid {hello.pid}) that called itself {name}: {reason}")
            self.control.send_to_pid(name, hello.pid, Refused(reason))
            return
        child = self.children[name]
        if child.pid == 0:
            child.adopt(hello.pid)
            if child.descriptor >= 0:
                self.waiter.add_descriptor(child.descriptor)
            self._note_start(child)
        child.is_welcome = True
        self.control.admit(name, hello.pid)
        self.control.send(name, Welcome(child.incarnation, child.uid_block))
        if _hears_table(child):
            self.publish(at_once=True)

    def _take_report(self, child: Child, message: Report) -> None:
        match message:
            case PhaseReport(text, fraction):
                if self.board.phase(child.name, text, fraction):
                    self._console.say_of(child.name, text)
                if fraction is not None:
                    self._console.progress(child.name, text, fraction)
            case StandingBy():
                self.board.standing_by(child.name)
                self._console.say_of(child.name, f"stands by after {time.monotonic() - child.started_s:.1f} s")
            case Ready():
                self.board.ready(child.name)
                child.is_on_trial = False
                self.restarts.note_ready(child.name, time.monotonic())
                self.publish(at_once=True)
                if child.is_front and self.is_draining:
                    self.control.send(child.name, Drain(0.0))
                self._console.say_of(child.name, f"ready in {time.monotonic() - child.started_s:.1f} s")
            case BootFailed(text):
                child.boot_error = text
                if self.is_first_start(child) and not self.is_stopping:
                    raise RunFailedError(f"{child.name} cannot start: {text}")
            case Beat():
                if self.board.beat(child.name, message):
                    self._console.say_of(child.name, "answers again")
            case Drained():
                self.drained[child.name] = message.num_unfinished
            case InstructionDone():
                self.instructions.note(message)
            case Ask():
                self._asks.append((self.control.identity_of(child.name), message))

    def is_first_start(self, child: Child) -> bool:
        """Tells whether a failure of this start is the run's failure. One that was started by hand may try again."""
        is_first = self.board.status(child.name).num_restarts == 0 and not child.is_on_trial
        return is_first and not child.is_external

    def _on_end(self, child: Child) -> None:
        self._site.run_dir.pid_file(child.name).unlink(missing_ok=True)
        if child.is_front:
            self._site.run_dir.socket(frontend_socket(child.uid_block)).unlink(missing_ok=True)
        if self.is_stopping:
            self.board.ended(child.name)
            return
        self._collect_last_words(child)
        self.forget_descriptor(child)
        self._console.end_progress()
        was_starting = self.board.status(child.name).state == "starting"
        child.is_welcome = False
        self.board.ended(child.name)
        if child.is_passing or child.is_on_trial or self.board.status(child.name).is_leaving:
            has_left = child.has_been_told and not was_starting
            self._console.say_of(child.name, "has left" if has_left else tell_end(child, was_starting))
            self.remove(child)
        elif child.name + SUCCESSOR in self.children:
            end = "gives way" if child.has_been_told else tell_end(child, was_starting)
            self._console.say_of(child.name, f"{end}; its successor takes over")
            self.board.waiting_for_successor(child.name)
        else:
            self.plan_restart(child, was_starting)

    def plan_restart(self, child: Child, was_starting: bool) -> None:
        """Has a dead process come back. Raises `RunFailedError` where it must not."""
        if was_starting and self.is_first_start(child):
            self._give_up(child, was_starting)
        is_last_front = child.is_front and not any(front.pid for front in self.fronts())
        if is_last_front and self.is_draining:  # nobody is left to whom the others could answer
            self._give_up(child, was_starting)
        if child.is_external and (was_starting or self.restarts.is_wanted(child.name)):
            self._tell_restart(child, tell_end(child, was_starting))
            self.start(child)
            return
        try:
            restart = self.restarts.note_death(child.name, time.monotonic())
        except NoRestartError as refusal:
            self._give_up(child, was_starting, f"\n{refusal}")
        else:
            self._tell_restart(child, f"{tell_end(child, was_starting)}; {restart.text}")

    def _tell_restart(self, child: Child, text: str) -> None:
        self.board.restarting(child.name)
        self.publish(at_once=True)
        self._console.say_of(child.name, text)

    def _give_up(self, child: Child, was_starting: bool, why: str = "") -> NoReturn:
        self.publish(at_once=True)
        raise RunFailedError(f"{tell_fatal_end(child, was_starting)}{why}")

    def _collect_last_words(self, child: Child) -> None:
        """Takes what a dead process has still written and, where it was starting, reported: the reason is in it."""
        waiter = Waiter()
        waiter.add_channel(self.control)
        deadline = time.monotonic() + LAST_WORDS_S
        with contextlib.suppress(RunFailedError):
            while time.monotonic() < deadline:
                self._take_reports()
                self.show_output(child)
                is_explained = child.boot_error or self.board.status(child.name).state != "starting"
                if is_explained and (child.is_silent or child.is_external):
                    break
                waiter.wait(LAST_WORDS_S / 20)

    def can_front_hear(self) -> bool:
        return any(front.is_welcome for front in self.fronts())

    def _table_due_in_s(self) -> float:
        """Returns when the frontend must hear the process table next: never while it is not there."""
        due_s = self.board.due_in_s(time.monotonic_ns()) if self.can_front_hear() else None
        return float("inf") if due_s is None else due_s

    def publish(self, at_once: bool = False) -> None:
        if self.can_front_hear() and (at_once or self._table_due_in_s() == 0):
            table = self.board.publish(time.monotonic_ns())
            for child in filter(_hears_table, self.children.values()):
                self.control.send(child.name, table)

    def ask_to_stop(self, child: Child) -> None:
        """Tells a process to end; one that is starting is killed."""
        child.has_been_told = True
        if not child.pid:
            return
        if self.board.status(child.name).state == "starting" and not child.is_external:
            child.kill()  # it may be deep in a load and has nothing to lose
        else:
            self.control.send(child.name, Stop())


def _hears_table(child: Child) -> bool:
    return child.is_front and child.is_welcome and not child.is_successor
