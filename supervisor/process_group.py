"""The processes of a run: which exist, under what names, and the table that the frontends receive."""

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from messages.channels import Waiter
from messages.control.processes import (
    PREDECESSOR,
    SUCCESSOR,
    Drain,
    ProcessStatus,
    Stop,
    TakeOver,
    kind_of,
    place_of,
    worker_number,
)
from messages.engine_names import RANK, SCHEDULER, engine_name
from messages.ring.uids import frontend_socket
from runtime.run_dir import RunDir
from supervisor.child import Child, Command
from supervisor.control_plane import ControlPlane
from supervisor.early_scheduler import EarlyScheduler
from supervisor.memory_files import MemoryFiles
from supervisor.signals import SignalPipe
from supervisor.status_board import StatusBoard

FRESH_S = 5.0
"""A standby without a heartbeat for longer than this may hang."""


@dataclass(frozen=True)
class Site:
    """The files and sockets that the launcher opens for a run before any process starts."""

    run_dir: RunDir
    listener: socket.socket
    signals: SignalPipe
    num_weight_bytes: int = 0
    """Bytes of weights that the schedulers will share, if known."""
    early_scheduler: EarlyScheduler | None = None


class ProcessGroup:
    """Owns the child processes, their table and the control plane. Nothing here waits."""

    def __init__(self, commands: Iterable[Command], site: Site, waiter: Waiter, hang_timeout_s: float):
        self._site = site
        self._waiter = waiter
        self._children = {command.name: Child(command) for command in commands}
        self.board = StatusBoard(list(self._children), hang_timeout_s)
        self.control = ControlPlane(site.run_dir.socket("launcher"))
        waiter.add_channel(self.control)
        self.has_started = False
        """All processes have served at the same time."""
        self.is_draining = False
        self.is_stopping = False
        self._num_frontend_starts = 0
        self.memory_files = MemoryFiles(site.run_dir, site.num_weight_bytes)
        for name in self._children:
            self.memory_files.provide(name)

    def __iter__(self) -> Iterator[Child]:
        """Iterates over a copy: processes may come and go meanwhile."""
        return iter(list(self._children.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._children

    def names(self) -> list[str]:
        return list(self._children)

    def find(self, name: str) -> Child | None:
        return self._children.get(name)

    def frontends(self) -> list[Child]:
        """Returns the frontends that have a place of their own, whether they run now or not."""
        return [child for child in self if child.is_front and not child.is_passing]

    def ranks_of(self, child: Child) -> list[Child]:
        """Returns the other ranks of a scheduler that has its place; none of another process."""
        if child.is_passing or kind_of(child.name) != SCHEDULER:
            return []
        engine = worker_number(child.name)
        return [other for other in self if kind_of(other.name) == RANK and worker_number(other.name) == engine]

    def leader_of(self, child: Child) -> Child:
        """Returns the scheduler of a rank, with which it starts and ends; of another process that itself."""
        return (
            self._children.get(engine_name(worker_number(child.name)), child) if kind_of(child.name) == RANK else child
        )

    def status(self, child: Child) -> ProcessStatus:
        return self.board.status(child.name)

    def state(self, child: Child) -> str:
        """Returns its `ProcessState`; `dead` for one that is not part of the run any more."""
        return self.status(child).state if child.name in self else "dead"

    def find_spare(self, child: Child) -> Child | None:
        """Returns the process that can take the place of `child`, which has died, at once: it has beaten just now."""
        spare = self.find(child.name + SUCCESSOR)
        if spare is None or not spare.is_spare or self.state(spare) != "standby":
            return None
        return spare if time.monotonic_ns() - self.status(spare).beat_ns < FRESH_S * 1e9 else None

    def is_up(self, child: Child) -> bool:
        """True if it has started to serve and has not ended."""
        return child.name in self and self.status(child).is_up

    def is_ready(self) -> bool:
        """True if every process serves, except engines on machines that have not joined yet."""
        return self.board.is_ready([child.name for child in self if child.command.is_remote])

    def record_started(self) -> None:
        """Every process serves: the frontends accept requests once they receive the table."""
        self.has_started = True
        self.publish(at_once=True)

    def begin_drain(self, timeout_s: float) -> None:
        """Makes the frontends refuse new requests; `has_drained` turns true when the last request has ended."""
        self.is_draining = True
        for frontend in self.frontends():
            if frontend.is_welcome:
                self.control.drain(frontend.name, Drain(timeout_s))

    def has_drained(self) -> bool:
        """True if no running frontend has a request left, including those about to leave."""
        is_one_leaving = any(child.is_front and child.name.endswith(PREDECESSOR) for child in self)
        living = [frontend for frontend in self.frontends() if frontend.pid]
        return not is_one_leaving and all(self.control.has_drained(frontend.name) for frontend in living)

    def num_unfinished(self) -> int:
        """Returns the number of requests left in the frontends that have drained."""
        return sum(self.control.num_unfinished(frontend.name) for frontend in self.frontends())

    def spawn(self, child: Child, spare: EarlyScheduler | None = None) -> None:
        """Starts the next incarnation of a process, as a continuation of `spare` if given. Raises `OSError`."""
        early = self._site.early_scheduler if child.command.imports_torch and spare is None else spare
        child.spawn(self._site.run_dir.path, self._site.listener.fileno() if child.is_front else None, early)
        self._site.run_dir.record_pid(child.name, child.pid)
        self._record_start(child)

    def adopt(self, child: Child, pid: int) -> None:
        """Takes a process that was started by hand as the next incarnation."""
        child.adopt(pid)
        self._record_start(child)

    def _record_start(self, child: Child) -> None:
        if child.descriptor >= 0:
            self._waiter.add_descriptor(child.descriptor)
        if child.is_front:
            self._num_frontend_starts += 1
            child.uid_block = self._num_frontend_starts
        self.board.started(child.name, child.pid, child.incarnation, child.uid_block)
        self.publish(at_once=True)

    def how_to_start(self, child: Child) -> str:
        """Returns the shell line that starts an external process by hand."""
        return child.by_hand(self._site.run_dir.path)

    def add(self, child: Child, num_restarts: int = 0) -> None:
        """Adds a process to the run before its start. If it raises `OSError`, the process is not part of the run."""
        self.memory_files.provide(child.name)
        self._children[child.name] = child
        self.board.add(child.name, num_restarts)

    def remove(self, child: Child) -> None:
        """Forgets a process that has ended and will not be started again, with its ranks."""
        for rank in self.ranks_of(child):
            self.remove(rank)
        del self._children[child.name]
        if not any(place_of(name) == place_of(child.name) for name in self._children):
            self.memory_files.drop(child.name)
            with contextlib.suppress(OSError):  # what was killed has left it
                self._site.run_dir.socket(child.name).unlink()
        self.board.remove(child.name)
        self.control.forget(child.name)
        self.publish(at_once=True)

    def give_place(self, successor: Child, child: Child) -> None:
        """Gives the name of `child` to `successor`, which stands by.

        A `child` that still lives, and finishes what it has begun, is called its predecessor.
        """
        name = child.name
        is_by_command = not successor.is_spare
        if successor.is_spare:  # the one before it may have been started again meanwhile
            successor.is_spare, successor.incarnation = False, child.incarnation + 1
            successor.started_s = time.monotonic()
        if child.pid:
            self._rename(child, name + PREDECESSOR)
        else:
            self.control.forget(name)
        self._rename(successor, name)
        self.board.taking_over(name, successor.incarnation, is_by_command)
        self.publish(at_once=True)  # a frontend must know the others before its first connection
        self.control.send(name, TakeOver(successor.incarnation))

    def _rename(self, child: Child, name: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not prevent the replacement of a process
            self._site.run_dir.pid_file(child.name).rename(self._site.run_dir.pid_file(name))
        self.control.rename(child.name, name)
        self.board.rename(child.name, name)
        del self._children[child.name]
        child.name = name
        self._children[name] = child

    def await_successor(self, child: Child) -> None:
        """Makes requests wait, because the successor of `child` is about to take over."""
        self.board.awaited(child.name)
        self.publish(at_once=True)

    def expect_no_longer(self, child: Child) -> None:
        """Sends `child` no requests until it serves: it has taken its place, but may never serve there."""
        self.board.awaited(child.name, False)
        self.publish(at_once=True)

    def can_move_requests(self, child: Child) -> bool:
        """True if another scheduler can continue the requests of `child`, a scheduler."""
        others = [other for other in self if other is not child and kind_of(other.name) == SCHEDULER]
        statuses = [self.status(other) for other in others if not other.is_passing]
        return kind_of(child.name) == SCHEDULER and any(one.is_serving and not one.is_leaving for one in statuses)

    def report_death(self, child: Child) -> None:
        """Moves the requests of `child` elsewhere before its death is handled any further."""
        self.board.gone(child.name)
        self.publish(at_once=True)

    def give_no_more_work(self, child: Child, is_leaving: bool = True) -> None:
        """Sends `child` no new work, so that it finishes what it has; `is_leaving=False` undoes that."""
        self.board.leaving(child.name, is_leaving)
        self.publish(at_once=True)

    def ask_to_stop(self, child: Child) -> None:
        """Asks a process to end; one that is starting is killed."""
        child.has_been_notified = True
        if not child.pid:
            return
        if self.status(child).state == "starting" and not (child.is_external or child.command.is_remote):
            child.kill()  # it may be deep in a load and has nothing to lose
        else:
            self.control.send(child.name, Stop())

    def remove_files(self, child: Child) -> None:
        """Removes the files of a process that has ended from the run directory, as far as the disk allows."""
        run_dir = self._site.run_dir
        files = [run_dir.pid_file(child.name), run_dir.stacks_file(self.status(child).pid)]
        for file in [*files, run_dir.socket(frontend_socket(child.uid_block))] if child.is_front else files:
            with contextlib.suppress(OSError):
                file.unlink()

    def close_output(self, child: Child) -> None:
        """Stops reading what a process writes."""
        if child.descriptor >= 0:
            self._waiter.remove_descriptor(child.descriptor)
            child.release()

    def has_listening_frontend(self) -> bool:
        return any(frontend.is_welcome for frontend in self.frontends())

    def table_due_in_s(self) -> float:
        """Seconds until the frontends must receive the next process table: `inf` without a frontend."""
        due_s = self.board.due_in_s(time.monotonic_ns()) if self.has_listening_frontend() else None
        return float("inf") if due_s is None else due_s

    def publish(self, at_once: bool = False) -> None:
        """Sends the process table to the frontends if it is due, or `at_once`."""
        if self.has_listening_frontend() and (at_once or self.table_due_in_s() == 0):
            table = self.board.publish(time.monotonic_ns())
            for child in self:
                if receives_process_table(child):
                    self.control.send(child.name, table)


def receives_process_table(child: Child) -> bool:
    return child.is_front and child.is_welcome and not child.is_successor
