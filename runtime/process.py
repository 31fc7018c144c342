"""The link of a process to its launcher: registration, start-up phases, heartbeats and the end.

Every process except the launcher runs in `run_process`. By hand: `python -m NAME --run-dir DIR`.
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
from typing import Any, TypeVar, cast

from messages.channels import ControlClient, Receiver, Sender, Waiter
from messages.control import admin
from messages.control.histograms import HistogramCounts
from messages.control.processes import (
    SUCCESSOR,
    Beat,
    BootFailed,
    Drain,
    Drained,
    FrontendReport,
    Hello,
    Leave,
    PhaseReport,
    ProcessTable,
    Ready,
    Refusal,
    StandingBy,
    Stop,
    TakeOver,
    ToProcess,
    Welcome,
)
from messages.errors import BootError, SluiceError
from messages.schema import SCHEMA_VERSION
from runtime.black_box.frame_recorder import FrameRecorder
from runtime.extras import load_parts
from runtime.lifeline import GRACE_S, ask_for_death_signal, has_launcher, leave_abandoned_run, watch_lifeline
from runtime.logs import set_log_level, set_up_logging
from runtime.profiling import ProcessProfiler
from runtime.run_dir import RunDir
from runtime.stacks import write_stacks_on_signal

P = TypeVar("P")

ControlMessage = Drain | Leave | ProcessTable | admin.Answer
"""The launcher's messages that are passed to the main loop."""

BEAT_INTERVAL_S, PHASE_INTERVAL_S = 1.0, 0.05
WELCOME_TIMEOUT_S = 10.0

log = logging.getLogger("sluice.process")


class ProcessLink:
    """The link of a process to its launcher, with everything else that a main loop needs besides its channels.

    `is_stopping` becomes true once: on `Stop`, on SIGTERM, or when the launcher dies.
    """

    def __init__(self, name: str, run_dir: RunDir, *, is_successor: bool = False, is_spare: bool = False):
        self.name = name
        self.is_spare = is_spare
        """It stands by in case the process of the same name dies, and must prepare without slowing that one down."""
        self.is_successor = is_successor
        """It waits in `stand_by` until the process of the same name has ended."""
        self.run_dir = run_dir
        self.config = run_dir.read_config()
        self.incarnation = 0
        self.uid_block = 0
        """The block of uids that a frontend assigns."""
        self.is_stopping = False
        self._is_launcher_gone = threading.Event()
        self.was_signalled = False
        self._recorder: FrameRecorder | None = None
        self._last_beat_ns, self._phase, self._phase_due_s = 0, "", 0.0
        self._was_busy: bool = False
        self._kept_messages: list[ControlMessage] = []
        """Messages that arrived during `stand_by`."""
        self._has_no_control = False
        """The last `wait` found nothing from the launcher, so the next `receive_control` need not check."""
        self._executors: dict[type[Any] | str, Callable[[Any], admin.ProcessResult]] = {}
        self.on_instruction: Callable[[admin.Instruction], None] = self._carry_out
        self.make_sender: Callable[[str], Sender[Any]] = lambda receiver: Sender(run_dir.socket(receiver))
        self.on_scheduler: list[Callable[[Any, Any], None]] = []
        """Called in a scheduler's process with its `Scheduler` and `Stepper` before the first step."""
        self.profiler = ProcessProfiler(name, run_dir)
        self.profiler.loop = self
        self.register(admin.StartProfile, self.profiler.start)
        self.register(admin.StopProfile, self.profiler.stop)
        for part in load_parts(self.config, "process"):
            part.attach(self)
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_writer, False)
        watch_lifeline(run_dir, self._on_launcher_gone)
        self._seat = name + SUCCESSOR if is_successor else name
        self._pid_file = _lock_name(self._seat, run_dir)
        self._control: ControlClient[ToProcess] = ControlClient(run_dir.socket("launcher"), self._seat, ToProcess)
        self.waiter = Waiter()
        self.waiter.add_channel(self._control)
        self.waiter.add_descriptor(self._wakeup_reader)
        self._send_hello()
        if not is_successor:
            self._record()

    def _send_hello(self) -> None:
        self._control.send(Hello(self._seat, os.getpid(), SCHEMA_VERSION))
        deadline = time.monotonic() + WELCOME_TIMEOUT_S
        while not self.is_stopping:
            self.waiter.wait(max(0.0, deadline - time.monotonic()))
            for message in self._control.receive():
                match message:
                    case Welcome(incarnation, uid_block):
                        self.incarnation = self.profiler.incarnation = incarnation
                        self.uid_block = uid_block
                        with contextlib.suppress(OSError):  # a full disk: the launcher knows the process anyway
                            os.truncate(self._pid_file, 0)
                            os.pwrite(self._pid_file, f"{os.getpid()}".encode("ascii"), 0)
                        return
                    case Refusal(reason):
                        raise BootError(f"the launcher refused this {self.name}: {reason}")
                    case Stop():
                        self.is_stopping = True
                    case _:
                        pass
            if time.monotonic() >= deadline and not self.is_stopping:
                raise BootError(f"the launcher in {self.run_dir.path} did not answer within {WELCOME_TIMEOUT_S:.0f} s")

    def _record(self) -> FrameRecorder:
        """Returns the frame recorder. A successor makes it with its first channel, since it removes older files."""
        if self._recorder is None:
            self._recorder = FrameRecorder(self.name, self.config, self.run_dir)
        return self._recorder

    def add_receiver(self, receiver: Receiver[Any]) -> None:
        """Makes `wait` return when a frame arrives at `receiver`, and beats report the frames it received."""
        receiver.on_frame = self._record().received_as(receiver.path.stem)
        self.waiter.add_channel(receiver)
        self.profiler.receivers.append(receiver)

    def open_sender(self, receiver: str) -> Sender[Any]:
        """Returns a new sender to the process `receiver`. Beats report the frames it sent."""
        sender = self.make_sender(receiver)
        sender.on_frame = self._record().sent_to(receiver)
        self.profiler.senders.append(sender)
        return sender

    def close_sender(self, sender: Sender[Any]) -> None:
        """Closes a sender to a process that is gone for good."""
        self.profiler.senders.remove(sender)
        sender.close()

    def descriptors(self) -> tuple[int, int]:
        """Returns what an event loop polls instead of `wait`: the descriptors of the control channel and of `wake`."""
        return self._control.fileno(), self._wakeup_reader

    def wait(self, timeout_s: float = BEAT_INTERVAL_S) -> None:
        """Blocks until a message arrives, a signal comes, or the next beat is due."""
        if not self.is_stopping:
            if self._wakeup_reader in self.waiter.wait(min(timeout_s, BEAT_INTERVAL_S)):
                os.read(self._wakeup_reader, 4096)
            self._has_no_control = not self.waiter.has_found(self._control)

    def wake(self) -> None:
        """Makes `wait` return. May be called in any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakeup_writer, b"\0")

    def phase(self, text: str, fraction: float | None = None) -> None:
        """Reports a start-up phase to the operator; `fraction` in [0, 1] is its progress, sent at most every 0.05 s."""
        now_s = time.monotonic()
        if fraction is None or text != self._phase or now_s >= self._phase_due_s:
            self._phase, self._phase_due_s = text, now_s + PHASE_INTERVAL_S
            self._control.send(PhaseReport(text, fraction))

    def stand_by(self) -> bool:
        """Waits for the predecessor to end, if this process is a successor. Returns False if it must stop instead.

        Call this when everything is prepared that can be prepared next to a running predecessor, and before binding any
        socket.
        """
        if self.is_successor:
            self._control.send(StandingBy())
        while self.is_successor and not self.is_stopping:
            self.wait()
            self.beat(dict[str, float])
            self._kept_messages = self.receive_control()
        return not self.is_stopping

    def ready(self, degraded: str = "", placement: dict[str, str] | None = None) -> None:
        """Reports to the launcher that this process serves, with degradations and the model's placement."""
        self._control.send(Ready(degraded, placement or {}))

    def report(self, message: PhaseReport | Ready | Beat | Drained | admin.InstructionDone) -> None:
        """Forwards a message of the process that this one represents to the launcher."""
        self._control.send(message)

    def drained(self, num_unfinished: int) -> None:
        self._control.send(Drained(num_unfinished))

    def beat(
        self,
        gauges: Callable[[], dict[str, float]],
        is_busy: bool = False,
        histograms: Callable[[], dict[str, HistogramCounts]] = dict,
        frontend: FrontendReport | None = None,
    ) -> None:
        """Sends a heartbeat at most once a second, and at once when work begins or ends.

        Call this in each iteration of the main loop, and with `is_busy` right before a step that may take long.
        """
        now_ns = time.monotonic_ns()
        is_due = now_ns - self._last_beat_ns >= BEAT_INTERVAL_S * 0.9e9
        if is_due or is_busy != self._was_busy:
            sent = {sender.path.stem: (sender.sender_id, sender.num_sent) for sender in self.profiler.senders}
            received = {
                key: span for receiver in self.profiler.receivers for key, span in receiver.arrivals.received.items()
            }
            self._control.send(Beat(now_ns, now_ns if is_busy else 0, gauges(), histograms(), sent, received, frontend))
            self._last_beat_ns, self._was_busy = now_ns, is_busy

    def register(self, kind: type[P], execute: Callable[[P], admin.ProcessResult]) -> None:
        """Makes `receive_control` call `execute` for each instruction of this kind. It may raise `SluiceError`."""
        self._executors[kind] = execute

    def register_extra(self, extra: str, execute: Callable[[admin.ExtraInstruction], admin.ProcessResult]) -> None:
        """Makes `receive_control` call `execute` for the instructions of an extra; it may raise `SluiceError`."""
        self._executors[extra] = execute

    def ask(self, ask_id: int, command: admin.AdminCommand) -> None:
        """Sends a command to the launcher; `receive_control` returns each `Answer`."""
        self._control.send(admin.Ask(ask_id, command))

    def receive_control(self) -> list[ControlMessage]:
        """Returns the launcher's messages for the main loop. Never waits.

        `Stop` sets `is_stopping`; instructions are executed by the functions given to `register`.
        """
        messages, self._kept_messages = self._kept_messages, []
        if self._has_no_control:
            self._has_no_control = False
            return messages
        for message in self._control.receive():
            match message:
                case Stop():
                    self.is_stopping = True
                case Refusal(reason):
                    log.error("the launcher refused this process: %s", reason)
                    self.is_stopping = True
                case Drain() | Leave() | ProcessTable() | admin.Answer():
                    messages.append(message)
                case TakeOver(incarnation):
                    self.incarnation, self.is_successor = incarnation, False
                    self.profiler.incarnation = incarnation
                case admin.Instruction():
                    self.on_instruction(message)
                case Welcome():
                    pass
        return messages

    def _carry_out(self, instruction: admin.Instruction) -> None:
        self._control.send(admin.InstructionDone(instruction.instruction_id, self._execute(instruction.command)))

    def _execute(self, command: admin.ProcessCommand) -> admin.ProcessResult:
        kind = command.extra if isinstance(command, admin.ExtraInstruction) else cast("type[Any]", type(command))
        execute = self._executors.get(kind)
        if execute is None:
            name = kind if isinstance(kind, str) else kind.__name__
            return admin.Failed("impossible", f"the {self.name} does not support {name}")
        try:
            return execute(command)
        except SluiceError as error:
            return admin.Failed("failed", str(error))
        except Exception as error:
            log.exception("%s failed", type(command).__name__)
            return admin.Failed("failed", f"{type(error).__name__}: {error}")

    def stop_on_signal(self) -> None:
        """Makes SIGTERM and SIGINT stop the main loop.

        Ctrl-C in the launcher's terminal does not reach its children, which have their own process groups, so a SIGINT
        is meant for a process that was started by hand.
        """
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)

    def _on_signal(self, signal_number: int, frame: object) -> None:
        self.was_signalled = True
        self._stop()

    def _on_launcher_gone(self) -> None:
        self._is_launcher_gone.set()
        self._stop()

    def _stop(self) -> None:
        self.is_stopping = True
        self.wake()

    def fail(self, message: str, fitting_len: int = 0) -> None:
        self._control.send(BootFailed(message, fitting_len))

    def close(self) -> None:
        """Leaves the run. If the launcher is gone, the last process to leave removes the run directory.

        The death signal of a launcher arrives some milliseconds before its lifeline ends, because it has several
        threads. So after a signal this waits for the lifeline, for at most the grace period.
        """
        if self._recorder is not None:
            self._recorder.close()
        self._control.close()
        if self._has_pid_file():
            self.run_dir.pid_file(self.name).unlink(missing_ok=True)
        is_gone = self._is_launcher_gone.wait(GRACE_S if self.was_signalled else 0.0)
        if is_gone or not has_launcher(self.run_dir):
            leave_abandoned_run(self.run_dir)

    def _has_pid_file(self) -> bool:
        """True if the pid file of this name is this process's, not its successor's."""
        with contextlib.suppress(FileNotFoundError):
            return os.fstat(self._pid_file).st_ino == self.run_dir.pid_file(self.name).stat().st_ino
        return False


def _lock_name(name: str, run_dir: RunDir) -> int:
    """Locks the pid file of process `name` until this process ends. Returns its descriptor.

    Raises `BootError` if such a process is already running: two with one name would read each other's messages.
    """
    try:
        descriptor = os.open(run_dir.pid_file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise BootError(f"the run in {run_dir.path} has just ended") from None
    except OSError as error:
        raise BootError(f"{error.filename}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        pid = run_dir.pids().get(name, "unknown")
        raise BootError(f"a {name} (pid {pid}) runs in {run_dir.path} already") from None
    return descriptor


def run_process(name: str, serve: Callable[[ProcessLink], None]) -> int:
    """Runs one process from its command line to its end. Returns the exit code.

    `serve` builds everything that the process owns, calls `link.ready()` and loops until `link.is_stopping`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=f"Runs the {name} of a server by hand.")
    parser.add_argument("--run-dir", required=True, type=Path, help="the run directory of the server")
    parser.add_argument("--name", default=name.removesuffix("_proc"), help="its name in the launcher")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    for flag in ("--stand-by", "--spare"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        run_dir = RunDir(arguments.run_dir.absolute())
        link = ProcessLink(arguments.name, run_dir, is_successor=arguments.stand_by, is_spare=arguments.spare)
    except SluiceError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    set_up_logging(link.name, link.config.run)
    link.register(admin.SetLogLevel, set_log_level)
    link.stop_on_signal()
    write_stacks_on_signal(link.run_dir)
    if arguments.parent_pid:
        ask_for_death_signal(arguments.parent_pid)
    try:
        serve(link)
    except BootError as error:
        link.fail(str(error), error.fitting_len)
        return 1
    finally:
        link.close()
    return 0
