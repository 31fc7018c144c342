"""A launcher for tests, with a real run directory, lifeline and control plane for the processes that a test starts.

    with FakeLauncher(config) as launcher:
        to_detokenizer = launcher.open_sender("detokenizer")
        from_detokenizer = launcher.open_receiver("frontend", ToFrontend)
        launcher.start("detokenizer_proc")
        launcher.wait_for("detokenizer", Ready)
        ...
        reply = launcher.take_one(from_detokenizer, timeout_s=5)

When the block ends without an error, every running process is stopped and must exit with 0.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from messages.channels import ControlServer, Receiver, Sender, Waiter
from messages.config.server import Config
from messages.control.processes import Hello, Ready, Stop, ToLauncher, Welcome
from runtime.lifeline import make_lifeline
from runtime.run_dir import claim
from tests.forked import ForkedProcess

M = TypeVar("M")
Process = ForkedProcess | subprocess.Popen[bytes]

ROOT = Path(__file__).resolve().parents[1]
STOP_TIMEOUT_S = 90.0
POLL_S = 0.1
"""Longest blocking poll, so that the death of a process is detected soon."""


class FakeLauncher:
    """Owns one run directory under a short path, and the processes started in it."""

    def __init__(self, config: Config):
        self._tmp = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
        self.run_dir, lock = claim(self._tmp / "run")
        self.run_dir.write_config(config)
        self._held = [make_lifeline(self.run_dir), lock]
        self._control: ControlServer[Any] = ControlServer(self.run_dir.socket("launcher"), ToLauncher)
        self._waiter = Waiter()
        self._waiter.add_channel(self._control)
        self._channels: list[Receiver[Any] | Sender[Any]] = []
        self.incarnation = 1
        self.processes: dict[str, Process] = {}
        self.messages: dict[str, list[Any]] = {}
        """Reports of each process that `wait_for` has not returned yet, in order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for name in list(self.processes):
                    self.stop(name)
        finally:
            self._close()

    def start(self, package: str, *arguments: str, module: str = "frontend.process") -> Process:
        """Starts `python -m package` on the run directory; its output goes to `log_text`. `module` is for a frontend.

        Frontends, of which tests start most, are forked from a process that has imported all they need.
        """
        name = package.removesuffix("_proc")
        where = ["--run-dir", str(self.run_dir.path)]
        process: Process
        with self._log_file(name).open("ab") as log:
            if package == "frontend":
                process = ForkedProcess(module, [*where, *arguments], log.fileno())
            else:
                command = [sys.executable, "-m", package, *where, "--parent-pid", str(os.getpid()), *arguments]
                process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes[name] = process
        return process

    def start_ready(self, package: str, timeout_s: float = 60.0) -> Process:
        """Starts a process and waits until it has reported `Ready`."""
        process = self.start(package)
        self.wait_for(package.removesuffix("_proc"), Ready, timeout_s)
        return process

    def send(self, name: str, message: Any) -> None:
        """Sends a control message to process `name`."""
        self._control.send(name, message)

    def wait_for(
        self, name: str, kind: type[M], timeout_s: float = 90.0, where: Callable[[M], bool] = lambda message: True
    ) -> M:
        """Removes and returns the oldest report `kind` of process `name` for which `where` is true.

        Fails at the deadline, or as soon as the process has exited without it.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            has_exited = name in self.processes and self.processes[name].poll() is not None
            self._receive_reports()
            for message in self.messages.get(name, []):
                if isinstance(message, kind) and where(message):
                    self.messages[name].remove(message)
                    return message
            if has_exited or time.monotonic() >= deadline:
                what = "exited without" if has_exited else f"did not report within {timeout_s} s"
                raise AssertionError(f"{name} {what} {kind.__name__}; its log:\n{self.log_text(name)}")
            self._waiter.wait(min(POLL_S, max(0.0, deadline - time.monotonic())))

    def open_receiver(self, name: str, union: Any) -> Receiver[Any]:
        """Binds the data channel of process `name`, which the test replaces."""
        receiver: Receiver[Any] = Receiver(self.run_dir.socket(name), union)
        self._channels.append(receiver)
        return receiver

    def open_sender(self, name: str) -> Sender[Any]:
        """Connects to the data channel of process `name`."""
        sender: Sender[Any] = Sender(self.run_dir.socket(name))
        self._channels.append(sender)
        return sender

    def take_one(self, receiver: Receiver[Any], timeout_s: float = 90.0) -> Any:
        """Returns the next message of `receiver`. Fails at the deadline."""
        deadline = time.monotonic() + timeout_s
        waiter = Waiter()
        waiter.add_channel(receiver)
        while True:
            for message in receiver.receive(limit=1):
                return message
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() >= deadline:
                logs = "\n".join(f"--- {name}:\n{self.log_text(name)}" for name in self.processes)
                raise AssertionError(f"nothing arrived at {receiver.path.name} in {timeout_s} s (dead: {dead})\n{logs}")
            waiter.wait(min(POLL_S, max(0.0, deadline - time.monotonic())))

    def stop(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops process `name`, which must exit with 0."""
        self.send(name, Stop())
        assert self.wait_exit(name, timeout_s) == 0, f"{name} failed:\n{self.log_text(name)}"

    def wait_exit(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Waits for process `name` to exit. Returns its exit code. Fails at the deadline."""
        process = self.processes[name]
        deadline = time.monotonic() + timeout_s
        while process.poll() is None:
            self._receive_reports()
            if time.monotonic() >= deadline:
                raise AssertionError(f"{name} did not exit within {timeout_s} s:\n{self.log_text(name)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        self._receive_reports()
        code = self.processes.pop(name).returncode
        assert code is not None
        return code

    def abandon(self) -> None:
        """Releases lock and lifeline, as the death of a launcher would: no process waits long for the lock then."""
        for descriptor in reversed(self._held):
            os.close(descriptor)
        self._held.clear()

    def log_text(self, name: str) -> str:
        """Returns the output of process `name` so far (standard output and error)."""
        file = self._log_file(name)
        return file.read_text(errors="replace") if file.exists() else ""

    def _log_file(self, name: str) -> Path:
        return self._tmp / f"{name}.log"

    def _receive_reports(self) -> None:
        for name, message in self._control.receive():
            if isinstance(message, Hello):
                self._control.send(name, Welcome(self.incarnation, uid_block=self.incarnation))
            self.messages.setdefault(name, []).append(message)

    def _close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for channel in self._channels:
            channel.close()
        self._control.close()
        self.abandon()
        shutil.rmtree(self._tmp, ignore_errors=True)
