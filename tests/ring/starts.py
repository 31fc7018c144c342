"""Starts and stops of a real server, again and again, each of which must leave nothing behind.

    python -m tests.ring.starts --times 50

Servers end in turn by kill -9 of the launcher under load, by `launch.py drain`, by SIGTERM under load and without load.
After each one no process of it may run (two seconds after a kill), its directory must be gone and its port free, and
nothing may be left in its directory for temporary files or, with the pid of a process of it, in shared memory.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from runtime.run_dir import RunDir
from tests.ring.client import body
from tests.supervisor.fake_run import is_running
from tests.tiny_llama import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [sys.executable, str(ROOT / "launch.py")]
TIMEOUT_S = 90.0
KILL_TIMEOUT_S = 2.0
"""Time from kill -9 of the launcher to the end of its last process, on an idle machine."""

SHARED_MEMORY = Path("/dev/shm")


class Run:
    """One start of a server on a free port, with its own run directory."""

    def __init__(self, model_dir: Path, run_path: Path, kill_timeout_s: float):
        self.kill_timeout_s = kill_timeout_s
        self.run_dir = RunDir(run_path)
        self.log = ""
        flags = ["--model", str(model_dir), "--cpu-threads", "1", "--port", "0", "--run-dir", str(run_path)]
        self._launcher = subprocess.Popen(
            [*LAUNCH, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(run_path.parent)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(self._is_ready, TIMEOUT_S, lambda: self.log)
        self.port = self.run_dir.read_config().http.port
        children = psutil.Process(self._launcher.pid).children(recursive=True)
        self._tree = [self._launcher.pid, *(child.pid for child in children)]

    def _read(self) -> None:
        assert self._launcher.stderr is not None
        with self._launcher.stderr:
            for line in self._launcher.stderr:
                self.log += line

    def _is_ready(self) -> bool:
        assert self._launcher.poll() is None, self.log
        return "stop     Ctrl-C" in self.log

    def signal(self, number: signal.Signals) -> None:
        self._launcher.send_signal(number)

    def drain(self) -> None:
        subprocess.run([*LAUNCH, "drain", "--run-dir", str(self.run_dir.path)], check=True, capture_output=True)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Two streams, one as long as possible, and a client that reconnects after the end."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT_S) as client:
            request = body([5, 6, 7], max_tokens=200, ignore_eos=True)
            with client.stream("POST", "/generate", json=request) as first:
                next(first.iter_bytes())
                with client.stream("POST", "/generate", json=request):
                    yield

    def check_end(self, exit_code: int, timeout_s: float) -> None:
        """Asserts that nothing is left after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        assert self._launcher.wait(timeout_s) == exit_code, self.log
        left_s = max(0.0, deadline_s - time.monotonic())
        wait_until(lambda: not any(map(is_running, self._tree)), left_s, lambda: f"one still runs of {self._tree}")
        wait_until(lambda: not self.run_dir.path.exists(), max(0.5, left_s), lambda: "the run directory is there")
        self._reader.join(TIMEOUT_S)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))

    def shared_memory(self) -> list[Path]:
        """Returns the files in shared memory that belong to one of the processes."""
        files = SHARED_MEMORY.iterdir() if SHARED_MEMORY.is_dir() else ()
        return [file for file in files if {int(digits) for digits in re.findall(r"\d+", file.name)} & set(self._tree)]

    def kill_all(self) -> None:
        """For a test that has failed."""
        for process in [*psutil.Process(self._launcher.pid).children(recursive=True)] if self._is_running() else []:
            process.kill()
        self._launcher.kill()

    def _is_running(self) -> bool:
        return self._launcher.poll() is None


def wait_until(is_there: Callable[[], bool], timeout_s: float, report_progress: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_there():
        assert time.monotonic() < deadline_s, report_progress()
        time.sleep(0.02)


def end_by_signal(run: Run) -> None:
    run.signal(signal.SIGTERM)
    run.check_end(0, TIMEOUT_S)


def end_by_command(run: Run) -> None:
    run.drain()
    run.check_end(0, TIMEOUT_S)


def end_under_load(run: Run) -> None:
    with run.load():
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGTERM)  # within the moment in which two signals are one
    run.check_end(0, TIMEOUT_S)


def end_by_kill(run: Run) -> None:
    with run.load():
        run.signal(signal.SIGKILL)
        run.check_end(-signal.SIGKILL, run.kill_timeout_s)


End = Callable[[Run], None]
ENDS: tuple[End, ...] = (end_by_kill, end_by_command, end_under_load, end_by_signal)


def start_and_stop(
    model_dir: Path, times: int, report_progress: Callable[[str], None], kill_timeout_s: float = KILL_TIMEOUT_S
) -> None:
    """Starts and stops servers. Fails if one leaves anything behind."""
    for number in range(times):
        end = ENDS[number % len(ENDS)]
        with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
            began_s = time.monotonic()
            run = Run(model_dir, Path(directory) / "run", kill_timeout_s)
            ready_s = time.monotonic()
            try:
                end(run)
            finally:
                run.kill_all()
            report_progress(
                f"{number + 1}: ready in {ready_s - began_s:.1f} s, {end.__name__} {time.monotonic() - ready_s:.1f} s"
            )
            assert list(Path(directory).iterdir()) == []
            assert run.shared_memory() == []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ring.starts", description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=50, help="how often (default: 50)")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory(prefix="sl-model-") as directory:
        write_tiny_llama(Path(directory))
        start_and_stop(Path(directory), times, lambda text: print(text, flush=True))
    print(f"{times} starts and stops left nothing behind")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
