"""Runs a command with a time limit and keeps the end of its output. A hanging command costs only its own time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
NUM_LAST_LINES = 40
MAX_LINE_CHARS = 300
GRACE_S = 10.0
"""From SIGTERM to SIGKILL: a server ends its processes meanwhile."""

LOOK_S = 0.5
"""How often a wait looks whether a signal has come."""

_signals: list[int] = []
"""Signals that have asked this process to end."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended. `reason` is empty if it returned 0; `last_lines` are of stdout and stderr together."""

    reason: str
    seconds: float
    last_lines: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        return not self.reason


def run_command(
    command: Sequence[str], timeout_s: float, output: IO[str], environment: Mapping[str, str] | None = None
) -> Outcome:
    """Runs the command in the root of the checkout and copies what it prints to `output`.

    It gets a process group of its own, which is ended at the limit, and whatever of it is left at the end.
    `environment` is added to this process's own. Raises `SystemExit` after a signal (`exit_on_signals`).
    """
    begin_s = time.monotonic()
    lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    reader = threading.Thread(target=_copy_lines, args=(process, lines, output), daemon=True)
    reader.start()
    try:
        code = _wait(process, begin_s + timeout_s)
    finally:
        _end_group(process)
        reader.join(GRACE_S)
    if _signals:
        sys.exit(128 + _signals[0])
    return Outcome(_describe_exit(code, timeout_s), round(time.monotonic() - begin_s, 2), tuple(lines))


def exit_on_signals() -> None:
    """From now on SIGTERM and SIGINT end what `run_command` runs, which then raises `SystemExit`."""

    def stop(number: int, frame: FrameType | None) -> None:
        # Nothing is raised here: between a command's start and its `try`, the command would be left running.
        _signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _copy_lines(process: subprocess.Popen[str], lines: deque[str], output: IO[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.append(line.rstrip()[:MAX_LINE_CHARS])
            output.write(line)
            output.flush()


def _wait(process: subprocess.Popen[str], end_s: float) -> int | None:
    """Returns its exit code, `None` at the limit and after a signal."""
    while not _signals and time.monotonic() < end_s:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(LOOK_S, max(0.0, end_s - time.monotonic())))
    return None


def _describe_exit(code: int | None, timeout_s: float) -> str:
    if code is None:
        return f"stopped after {timeout_s:.0f} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""


def _end_group(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, number)
