"""One process of the server: how it is started, what it has written last, and how it ended."""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from messages.control.processes import FRONTEND, PREDECESSOR, SUCCESSOR, kind_of, worker_name
from runtime.forked_process import MODULE_INDEX, ForkedProcess, open_process
from supervisor.early_scheduler import EarlyScheduler
from supervisor.log_ring import LogRing
from supervisor.output_lines import OutputLines
from supervisor.python_process import ROOT, python_environment

NUM_LAST_LINES = 30

END_LOOK_S = 0.005
"""Between two looks at a process that has closed its output: its end can be noticed some milliseconds later, when the
kernel has taken its memory back, and no descriptor reports that."""

SIGNAL_HINTS = {
    signal.SIGKILL: " (kill -9, or the kernel's out-of-memory killer)",
    signal.SIGSEGV: " (a crash in native code)",
    signal.SIGBUS: " (a crash in native code, or a full /dev/shm)",
    signal.SIGILL: " (an instruction that this CPU does not have)",
    signal.SIGABRT: " (native code gave up)",
}


@dataclass(frozen=True)
class Command:
    """How process `name` is started; the run directory is added to `arguments`. `is_external`: by hand.

    `is_remote`: it stands for one on another machine, which may come at any time; `is_scalable`: there may be more of
    its kind, or fewer.
    """

    name: str
    arguments: tuple[str, ...]
    is_external: bool = False
    is_remote: bool = False
    is_scalable: bool = True
    imports_torch: bool = False
    """It can be the process that was begun early."""


def command_of_worker(first: Command, number: int) -> Command:
    """Returns how the worker with this number is started, where `first` is how worker 1 is."""
    name = worker_name(first.name, number)
    return replace(first, name=name, arguments=(*first.arguments, "--name", name), imports_torch=False)


def number_commands(first: Command, numbers: Iterable[int]) -> list[Command]:
    """Returns the commands of workers; the first worker of a kind has no number in its name."""
    return [first if number == 1 else command_of_worker(first, number) for number in numbers]


class Child:
    """A process of the run through all its incarnations. `pid` is 0 while it does not run."""

    def __init__(self, command: Command):
        self.name = command.name
        """Its name in the run: `tokenizer`, or `tokenizer.next` while it stands by to replace that."""
        self.command = command
        self.is_external = command.is_external
        self.pid = 0
        self.latest_pid = 0
        """The pid of the latest incarnation, even after its end."""
        self.incarnation = 0
        self.uid_block = 0
        """For a frontend, the block of uids that its latest incarnation assigns."""
        self.started_s = 0.0
        self.descriptor = -1
        """Becomes readable when the process writes or ends; -1 without one."""
        self.is_silent = False
        """It has closed its output."""
        self.is_welcome = False
        """It has sent its hello, so it receives messages to its name. While `pid` is 0: its end is being dealt with."""
        self.has_been_notified = False
        """It has been asked to stop, so its end is no death."""
        self.is_early = False
        """It was begun before the run, and reports nothing until it has imported torch."""
        self.is_on_trial = False
        """It has been added to a run that serves: where it cannot start it is given up, and the run continues."""
        self.is_spare = False
        """It stands by in case the one before it dies, and not to replace it."""
        self.boot_error: str | None = None
        self.was_starting = False
        """The latest incarnation has ended without having served."""
        self.gave_up = False
        """The latest one ended by itself, with an error."""
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self.log = LogRing()
        self.ending = ""
        """How the latest incarnation ended."""
        self._why_killed = ""
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._output: OutputLines | None = None

    @property
    def is_front(self) -> bool:
        """It inherits the listening socket, drains, and receives the process table."""
        return kind_of(self.command.name) == FRONTEND

    @property
    def is_successor(self) -> bool:
        """It has been started to take another's place, and has not got it yet."""
        return self.name.endswith(SUCCESSOR)

    @property
    def is_passing(self) -> bool:
        """It has no place of its own: it is a successor, or a predecessor that is about to leave."""
        return self.name.endswith((SUCCESSOR, PREDECESSOR))

    @classmethod
    def successor_of(cls, child: "Child") -> "Child":
        """Returns the replacement for `child`, not yet started."""
        successor = cls(child.command)
        successor.name = child.name + SUCCESSOR
        successor.incarnation = child.incarnation
        successor.log = child.log
        return successor

    def spawn(self, run_path: Path, listen_fd: int | None, early: EarlyScheduler | None = None) -> None:
        """Starts the next incarnation, in a process group of its own so that Ctrl-C reaches only the launcher.

        The process inherits the listening socket `listen_fd`, where one is given, and finds its number in
        `SLUICE_LISTEN_FD`. An `early` process continues as this one, if it still can.
        """
        environment = python_environment()
        environment.pop("SLUICE_LISTEN_FD", None)
        if listen_fd is not None:
            environment["SLUICE_LISTEN_FD"] = str(listen_fd)
        arguments = ["--stand-by"] * self.is_successor + ["--spare"] * self.is_spare
        arguments += ["--run-dir", str(run_path), "--parent-pid", str(os.getpid())]
        command = [*self.command.arguments, *arguments]
        begun = early.continue_after(command[MODULE_INDEX:]) if early is not None else None
        self.is_early = begun is not None
        self._process = begun or open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=() if listen_fd is None else (listen_fd,),
            process_group=0,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._begin(self._process.pid, self._process.stdout.fileno())

    def adopt(self, pid: int) -> None:
        """Takes a process that was started by hand as the next incarnation."""
        descriptor = -1
        with contextlib.suppress(AttributeError, OSError):  # not on this system, or the process has ended already
            descriptor = os.pidfd_open(pid)
        self._begin(pid, descriptor)

    def _begin(self, pid: int, descriptor: int) -> None:
        self.pid = self.latest_pid = pid
        self.descriptor = descriptor
        self.incarnation += 1
        self.started_s = time.monotonic()
        self.boot_error = None
        self.has_been_notified = False
        self.is_welcome = False
        self.is_silent = False
        self.ending = ""
        self._why_killed = ""
        self._output = None if self._process is None else OutputLines(descriptor)
        self.last_lines.clear()

    def read_output(self) -> list[str]:
        """Returns the lines that the process has written, and never waits; `is_silent` is true after the last."""
        lines = None if self._output is None or self.is_silent else self._output.read()
        if self._output is None or lines is None:
            return []
        self.is_silent = self._output.has_ended
        self.last_lines.extend(lines)
        self.log.extend(lines)
        return lines

    def notice_end(self) -> bool:
        """True if the process has ended; then `pid` is 0 and `ending` describes the end."""
        if self.pid == 0:
            return False
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return False
            self.ending = self._why_killed or how_it_ended(code)
            self.gave_up = code > 0
        elif _is_alive(self.pid, self.descriptor):
            return False
        else:
            self.ending = "ended (it was started by hand)"
        self.pid = 0
        return True

    def kill(self, why: str = "") -> None:
        """Kills the launcher's own process, even a stopped one; `notice_end` returns true once it is gone.

        `why` becomes its `ending`.
        """
        if self._process is not None:
            self._why_killed = why
            self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """Waits for the end of a killed process."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def release(self) -> None:
        """Closes the descriptor; what the process writes from now on is lost."""
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        elif self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def by_hand(self, run_path: Path) -> str:
        """Returns the shell line that starts this process by hand."""
        line = shlex.join([*self.command.arguments, "--run-dir", str(run_path)])
        return f"PYTHONPATH={shlex.quote(str(ROOT))} {line}"


def how_it_ended(code: int) -> str:
    """Returns what an exit code means; negative ones are signals."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by {name.name}{SIGNAL_HINTS.get(name, '')}"


def _is_alive(pid: int, pidfd: int) -> bool:
    if pidfd >= 0:
        return not select.select([pidfd], [], [], 0)[0]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
