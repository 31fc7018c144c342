"""Starts a launcher of fake processes for a test, reads what it prints, and leaves nothing behind."""

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from runtime.run_dir import RunDir
from tests.forked import ForkedProcess

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
BOOT_TIMEOUT_S = HANG_TIMEOUT_S = 10.0
"""Time limit of stuck processes: a good one starts and beats in less, even if other programs use all cores."""

GOOD = "serve_until_stopped"


def wait_until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Returns when `condition` holds; fails at the deadline. For what gives no message, as the end of a process."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """True if process `pid` exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False


def environment(**extra: str) -> dict[str, str]:
    """Returns an environment in which the packages of this program are found."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


class FakeRun:
    """One run of `fake_launch.py`; `behaviours` are those of `fake_child.py` by process name."""

    def __init__(self, behaviours: dict[str, str], run_dir: RunDir | None = None, **run: Any):
        self._tmp = tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp")
        self.run_dir = run_dir or RunDir(Path(self._tmp.name) / "run")
        settings = {
            "behaviours": behaviours,
            "run": {"run_dir": str(self.run_dir.path), "max_snapshots": 0, "standby": False, **run},
        }
        self._errors, errors = os.pipe()
        self.launcher = ForkedProcess("tests.supervisor.fake_launch", [json.dumps(settings)], errors)
        os.close(errors)
        self.output = ""
        self._pids: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.record_pids()
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        for pid in filter(is_running, self._pids):
            os.kill(pid, signal.SIGKILL)
        os.close(self._errors)
        self._tmp.cleanup()

    def record_pids(self) -> dict[str, int]:
        """Returns the processes of the run by name, and remembers them for the end."""
        pids = self.run_dir.pids()
        self._pids |= set(pids.values())
        return pids

    def wait_for(self, text: str, timeout_s: float = TIMEOUT_S) -> None:
        """Returns when the launcher has printed `text`. Fails at the deadline, and where it ends without it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"no {text!r} within {timeout_s} s in:\n{self.output}"
            assert self._read(left_s) or text in self.output, f"ended without {text!r}:\n{self.output}"
        self.record_pids()

    def wait_exit(self, timeout_s: float = TIMEOUT_S) -> int:
        """Returns the launcher's exit code; `output` is complete then."""
        deadline = time.monotonic() + timeout_s
        while self._read(max(0.0, deadline - time.monotonic())):
            assert time.monotonic() < deadline, f"the launcher did not end within {timeout_s} s:\n{self.output}"
        return self.launcher.wait(max(0.1, deadline - time.monotonic()))

    def assert_nothing_left(self, timeout_s: float = 10.0) -> None:
        """Every process that was ever seen is gone, and so is the run directory."""
        wait_until(lambda: not any(map(is_running, self._pids)) and not self.run_dir.path.exists(), timeout_s)

    def _read(self, timeout_s: float) -> bool:
        if select.select([self._errors], [], [], timeout_s)[0]:
            data = os.read(self._errors, 1 << 16)
            self.output += data.decode()
            return bool(data)
        return True
