"""A server that a benchmark starts for itself: on a free port, in a run directory of its own, and surely stopped."""

import collections
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load.connection import Target, parse_url
from benchmarks.load.server_facts import ServerUnavailableError
from runtime.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = [sys.executable, str(ROOT / "launch.py")]
OWN_FLAGS = ("--port", "0", "--max-snapshots", "0")
POLL_INTERVAL_S = 0.02

COMPILED_NOT_KEPT = "PYTHONDONTWRITEBYTECODE"
"""With it each process compiles all that it imports of ours at every start, which no installation does."""

NUM_LINES_SHOWN = 40


class ServerProcess:
    """A running launcher, of the code in `root` if given. `log` holds its last lines, with the seconds since the start.

    It takes no snapshots unless the arguments ask for them.
    """

    def __init__(self, arguments: Sequence[str], root: Path | None = None):
        self.run_dir = RunDir(Path(tempfile.mkdtemp(prefix="sluice-bench-", dir="/tmp")))
        self.log: collections.deque[tuple[float, str]] = collections.deque(maxlen=20_000)
        self.begin_s = time.monotonic()
        launch = [sys.executable, str(root / "launch.py")] if root else LAUNCH
        self._process = subprocess.Popen(
            [*launch, *OWN_FLAGS, "--run-dir", str(self.run_dir.path), *arguments],
            cwd=root or ROOT,
            env={name: value for name, value in os.environ.items() if name != COMPILED_NOT_KEPT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, deadline_s: float, is_ready: Callable[[Target], bool] | None = None) -> Target:
        """Returns where the server listens once `is_ready` holds there: by default, once `/health` answers 200.

        Raises `ServerUnavailableError` with the end of its log where it exits or `deadline_s` seconds pass before that.
        """
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                raise ServerUnavailableError(f"the server exited with {self._process.returncode}:\n{self.log_text()}")
            target = self._address()
            if target is not None and (is_ready or _is_ready)(target):
                return target
            time.sleep(POLL_INTERVAL_S)
        raise ServerUnavailableError(f"the server was not ready after {deadline_s:g} s:\n{self.log_text()}")

    def wait_until_listening(self, deadline_s: float) -> None:
        """Returns once the launcher listens for its processes. Raises `ServerUnavailableError`."""
        end_s = time.monotonic() + deadline_s
        while not self.run_dir.socket("launcher").exists():
            if time.monotonic() > end_s:
                raise ServerUnavailableError(f"the launcher did not start:\n{self.log_text()}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self, deadline_s: float = 40.0) -> int:
        """Ends the server by SIGTERM, after the deadline by SIGKILL; returns the exit code. Safe to call again."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=5)
        shutil.rmtree(self.run_dir.path, ignore_errors=True)
        return self._process.returncode

    def log_text(self) -> str:
        """The last lines of the log."""
        return "\n".join(line for _, line in list(self.log)[-NUM_LINES_SHOWN:])

    def _address(self) -> Target | None:
        try:
            text = self.run_dir.address_file.read_text(encoding="ascii").strip()
        except OSError:
            return None
        return Target(*parse_url(text)) if text else None

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self.log.append((round(time.monotonic() - self.begin_s, 3), line.rstrip()))


@contextmanager
def started_server(arguments: Sequence[str], deadline_s: float) -> Iterator[tuple[ServerProcess, Target]]:
    """A ready server, stopped at the end whatever happens."""
    server = ServerProcess(arguments)
    try:
        yield server, server.wait_until_ready(deadline_s)
    finally:
        server.stop()


@contextmanager
def server_with_scheduler(
    module: str, arguments: Sequence[str], deadline_s: float, scheduler_arguments: Sequence[str] = ()
) -> Iterator[tuple[ServerProcess, Target]]:
    """A ready server whose scheduler is `module`, started beside it as a process of its own."""
    server = ServerProcess(["--external", "scheduler", *arguments])
    scheduler = None
    try:
        server.wait_until_listening(deadline_s)
        command = [sys.executable, "-m", module, *scheduler_arguments, "--run-dir", str(server.run_dir.path)]
        scheduler = subprocess.Popen(command, cwd=ROOT)
        yield server, server.wait_until_ready(deadline_s)
    finally:
        server.stop()
        if scheduler is not None:
            scheduler.terminate()
            scheduler.wait(10)


def _is_ready(target: Target) -> bool:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
