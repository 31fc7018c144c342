"""Processes forked from one that has already imported their modules, since imports dominate short processes.

Python's fork server forks them. It has no threads and no state of the test process.
"""

import atexit
import ctypes
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(
    ["frontend.process", "launch", "supervisor.model.fetch", "tests.supervisor.fake_launch"]
)

TIMEOUT_S = 60.0


class ForkedProcess:
    """Runs `main` of `module` with `arguments`. `output` and `errors` are descriptors; without `errors`, both are one.

    It has the interface of `subprocess.Popen` that tests use. Its parent is the fork server, which ends with the test
    process.
    """

    def __init__(self, module: str, arguments: Sequence[str], output: int, errors: int | None = None):
        with Connection(os.dup(output)) as out, Connection(os.dup(output if errors is None else errors)) as err:
            self._process = _FORK_SERVER.Process(
                target=_run, args=(module, arguments, out, err, dict(os.environ)), daemon=True
            )
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, negative for a signal. Raises `TimeoutExpired` if it still runs after `timeout`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_forked(module: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run`: waits for the process and returns its exit code and output."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = ForkedProcess(module, arguments, output.fileno(), errors.fileno())
        try:
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([module, *arguments], code, output.read(), errors.read())


def _run(module: str, arguments: Sequence[str], output: Connection, errors: Connection, env: dict[str, str]) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    output.close()
    errors.close()
    become(arguments, env)
    try:
        sys.exit(importlib.import_module(module).main())
    finally:
        atexit._run_exitfuncs()  # multiprocessing skips them


def become(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Sets up this forked process like a new one with these arguments and environment."""
    sys.argv = ["forked", *arguments]
    os.environ.clear()
    os.environ.update(env)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    _show_arguments(arguments)


def _show_arguments(arguments: Sequence[str]) -> None:
    """Overwrites this process's command line, by which our processes find those of a run directory."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end of proc(5)
    shown = b"".join(word.encode() + b"\0" for word in arguments)
    ctypes.memmove(begin, shown[: end - begin].ljust(end - begin, b"\0"), end - begin)
