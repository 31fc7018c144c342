"""Servers forked from a process that has imported the modules of all their processes, since imports dominate a start.

`--models` starts the servers of its models in the same way (`extras/models/host.py`), and everything below forks, too.
"""

import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from extras.models.host import prepare
from messages.config.server import Config, ModelFacts
from runtime.extras import load_parts, load_sections
from runtime.forked_process import fork
from supervisor.run import launch

ROOT = Path(__file__).resolve().parents[1]
MAX_REQUEST_BYTES = 1 << 20
NUMBER_BYTES = 4
END_TIMEOUT_S = 30.0


class ForkHost:
    """The process that forks, from the view of the tests. End its servers first."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._requests.close()
        self._process.wait(END_TIMEOUT_S)

    def open(self, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> "ForkedLauncher":
        """Starts the server of a command line; `options` must be those that `ServerProcess` passes to `Popen`.

        Variables of `env` that a library reads when it is imported have no effect: it was imported before the fork.
        """
        has_own_session: bool = options["start_new_session"]
        request = {"command": list(command), "env": dict(env), "has_own_session": has_own_session}
        return ForkedLauncher(self._requests, request)


class ForkedLauncher:
    """The launcher of a forked server, with the parts of `subprocess.Popen` that `ServerProcess` uses."""

    def __init__(self, requests: socket.socket, request: dict[str, Any]):
        self._status, status = os.pipe()
        output, writer = os.pipe()
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        try:
            socket.send_fds(requests, [json.dumps(request).encode()], [writer, status])
        finally:
            os.close(writer)
            os.close(status)
        self.pid = self._read()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, negative for a signal. Raises `TimeoutExpired`."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"{self.pid}", timeout or 0.0)
        return self._end() if self.returncode is None else self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> int:
        self.returncode = self._read()
        os.close(self._status)
        return self.returncode

    def _read(self) -> int:
        number = os.read(self._status, NUMBER_BYTES)
        assert number, "the process that forks servers has ended"
        return int.from_bytes(number, sys.byteorder, signed=True)


def serve(requests: socket.socket) -> None:
    """Forks the requested servers until the tests end. Writes the pid and then the exit code of each into its pipe."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready: list[Any] = select.select([requests, *running], [], [])[0]
        for descriptor in running.keys() & ready:
            pid, status = running.pop(descriptor)
            _write(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os.close(status)
            os.close(descriptor)
        if requests in ready:
            content, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 2)
            if not content:
                return
            pid = _fork(**json.loads(content), output=descriptors[0])
            os.close(descriptors[0])
            _write(descriptors[1], pid)
            running[os.pidfd_open(pid)] = pid, descriptors[1]


def _write(status: int, number: int) -> None:
    os.write(status, number.to_bytes(NUMBER_BYTES, sys.byteorder, signed=True))


def _fork(command: Sequence[str], env: Mapping[str, str], has_own_session: bool, output: int) -> int:
    def run() -> int:
        if has_own_session:
            os.setsid()
        os.environ.clear()
        os.environ.update(env)
        return launch(list(command[2:]))

    with Path(os.devnull).open("rb") as nothing:
        return fork(run, shlex.join(command), (nothing.fileno(), output, output))


def main() -> int:
    load_sections()
    load_parts(Config(facts=ModelFacts()), "frontend")
    prepare()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
