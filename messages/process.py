"""A process's link to its launcher: hello, phases of the start, heartbeats, and the word to stop.

Every process but the launcher starts through `run_process`, and by hand with `python -m NAME --run-dir DIR`.
"""

import argparse
import contextlib
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from messages.channels import ControlClient, Receiver, Waiter
from messages.control import (
    SCHEMA_VERSION,
    Beat,
    BootFailed,
    Drain,
    Drained,
    Hello,
    PhaseReport,
    ProcessTable,
    Ready,
    Refused,
    Stop,
    ToProcess,
    Welcome,
)
from messages.errors import BootError, SluiceError
from messages.lifeline import GRACE_S, ask_for_death_signal, has_launcher, leave_abandoned_run, watch_lifeline
from messages.run_dir import RunDir

BEAT_INTERVAL_S = 1.0
WELCOME_TIMEOUT_S = 10.0

log = logging.getLogger("sluice.process")


class ProcessLink:
    """What a main loop needs besides its channels.

    `is_stopping` turns true once: on `Stop`, on SIGTERM, or when the launcher dies.
    """

    def __init__(self, name: str, run_dir: RunDir):
        self.name = name
        self.run_dir = run_dir
        self.config = run_dir.read_config()
        self.incarnation = 0
        self.is_stopping = False
        self._is_launcher_gone = threading.Event()
        self._was_signalled = False
        self._last_beat_ns = 0
        self._was_busy: bool = False
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_writer, False)
        watch_lifeline(run_dir, self._on_launcher_gone)
        self._pid_file = _take_name(name, run_dir)
        self._control: ControlClient[ToProcess] = ControlClient(run_dir.socket("launcher"), name, ToProcess)
        self._waiter = Waiter()
        self._waiter.add_channel(self._control)
        self._waiter.add_descriptor(self._wakeup_reader)
        self._say_hello()

    def _say_hello(self) -> None:
        self._control.send(Hello(self.name, os.getpid(), SCHEMA_VERSION))
        deadline = time.monotonic() + WELCOME_TIMEOUT_S
        while not self.is_stopping:
            self._waiter.wait(max(0.0, deadline - time.monotonic()))
            for message in self._control.take():
                match message:
                    case Welcome(incarnation):
                        self.incarnation = incarnation
                        os.truncate(self._pid_file, 0)
                        os.pwrite(self._pid_file, f"{os.getpid()}".encode("ascii"), 0)
                        return
                    case Refused(reason):
                        raise BootError(f"the launcher refused this {self.name}: {reason}")
                    case Stop():
                        self.is_stopping = True
                    case _:
                        pass
            if time.monotonic() >= deadline and not self.is_stopping:
                raise BootError(f"the launcher in {self.run_dir.path} did not answer within {WELCOME_TIMEOUT_S:.0f} s")

    def add_receiver(self, receiver: Receiver[Any]) -> None:
        """Lets `wait` return when something arrives for `receiver`."""
        self._waiter.add_channel(receiver)

    def descriptors(self) -> tuple[int, int]:
        """For an event loop in place of `wait`: the control channel's descriptor, and one for a stop."""
        return self._control.fileno(), self._wakeup_reader

    def wait(self, timeout_s: float = BEAT_INTERVAL_S) -> None:
        """Blocks until a receiver or the launcher has something, a signal comes, or it is time for the next beat."""
        if not self.is_stopping:
            self._waiter.wait(min(timeout_s, BEAT_INTERVAL_S))

    def phase(self, text: str, fraction: float | None = None) -> None:
        """Tells the operator what this process is doing while it starts; `fraction` in [0, 1] draws a bar."""
        self._control.send(PhaseReport(text, fraction))

    def ready(self) -> None:
        self._control.send(Ready())

    def drained(self, num_unfinished: int) -> None:
        self._control.send(Drained(num_unfinished))

    def beat(self, gauges: Callable[[], dict[str, float]], is_busy: bool = False) -> None:
        """Tells the launcher that the main loop turns: at most once a second, and at once when work begins or ends.

        Call it in each turn of the loop; with `is_busy` right before a step that may take long.
        """
        now_ns = time.monotonic_ns()
        is_due = now_ns - self._last_beat_ns >= BEAT_INTERVAL_S * 0.9e9
        if is_due or is_busy != self._was_busy:
            self._control.send(Beat(now_ns, now_ns if is_busy else 0, gauges()))
            self._last_beat_ns, self._was_busy = now_ns, is_busy

    def take_orders(self) -> list[Drain | ProcessTable]:
        """Returns what the launcher wants of this process; a `Stop` sets `is_stopping` instead. Never waits."""
        orders: list[Drain | ProcessTable] = []
        for message in self._control.take():
            match message:
                case Stop():
                    self.is_stopping = True
                case Refused(reason):
                    log.error("the launcher refused this process: %s", reason)
                    self.is_stopping = True
                case Drain() | ProcessTable():
                    orders.append(message)
                case Welcome():
                    pass
        return orders

    def stop_on_signal(self) -> None:
        """Makes SIGTERM and SIGINT stop the main loop.

        A Ctrl-C in the launcher's terminal does not come here (its children are process groups of their own), so a
        SIGINT is meant for a process that was started by hand.
        """
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)

    def _on_signal(self, signal_number: int, frame: object) -> None:
        self._was_signalled = True
        self._stop()

    def _on_launcher_gone(self) -> None:
        self._is_launcher_gone.set()
        self._stop()

    def _stop(self) -> None:
        self.is_stopping = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakeup_writer, b"\0")

    def fail(self, message: str) -> None:
        self._control.send(BootFailed(message))

    def close(self) -> None:
        """Leaves the run; the last process of a run whose launcher is gone removes the directory.

        The signal of a launcher's death comes some milliseconds before its lifeline ends (it has several threads), so
        after a signal this waits for the end, for at most the grace.
        """
        self._control.close()
        self.run_dir.pid_file(self.name).unlink(missing_ok=True)
        is_gone = self._is_launcher_gone.wait(GRACE_S if self._was_signalled else 0.0)
        if is_gone or not has_launcher(self.run_dir):
            leave_abandoned_run(self.run_dir)


def _take_name(name: str, run_dir: RunDir) -> int:
    """Locks the pid file of process `name` until this process ends, and returns its descriptor.

    Raises `BootError` where such a process runs already: two under one name would take each other's messages.
    """
    try:
        descriptor = os.open(run_dir.pid_file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise BootError(f"the run in {run_dir.path} has just ended") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        pid = run_dir.pids().get(name, "unknown")
        raise BootError(f"a {name} (pid {pid}) runs in {run_dir.path} already") from None
    return descriptor


def run_process(name: str, serve: Callable[[ProcessLink], None]) -> int:
    """Runs one process from its command line to its end; returns the exit code.

    `serve` builds what the process owns, calls `link.ready()` and loops until `link.is_stopping`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=f"Runs the {name} of a server by itself.")
    parser.add_argument("--run-dir", required=True, type=Path, help="the run directory of the server")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        link = ProcessLink(name.removesuffix("_proc"), RunDir(arguments.run_dir.absolute()))
    except SluiceError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    level = link.config.run.log_level.upper()
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    link.stop_on_signal()
    if arguments.parent_pid:
        ask_for_death_signal(arguments.parent_pid)
    try:
        serve(link)
    except BootError as error:
        link.fail(str(error))
        return 1
    finally:
        link.close()
    return 0
