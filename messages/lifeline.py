"""The lifeline: no process outlives its launcher, and no file outlives the run, however the launcher died.

The launcher holds the write end of a FIFO in the run directory; end of file tells every process that it is gone, also
one that was started by hand. A guard thread waits for it: it asks the main loop to stop and, whatever that does, ends
the process, its hung siblings and the run directory soon after.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from messages.errors import BootError
from messages.run_dir import RunDir

GRACE_S = 1.0
"""What a process gets between the end of its launcher and its own."""

_PR_SET_PDEATHSIG = 1


def make_lifeline(run_dir: RunDir) -> int:
    """Creates the FIFO and returns the descriptor that the launcher holds open for the run."""
    os.mkfifo(run_dir.lifeline, 0o600)
    return os.open(run_dir.lifeline, os.O_RDWR | os.O_CLOEXEC)


def ask_for_death_signal(parent_pid: int) -> None:
    """Has the kernel send SIGTERM when the parent dies (Linux; elsewhere the lifeline alone serves)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), signal.SIGTERM)


def watch_lifeline(run_dir: RunDir, on_end: Callable[[], None]) -> None:
    """Starts the guard thread; it calls `on_end` when the launcher is gone.

    Raises `BootError` where it is gone already.
    """
    try:
        descriptor = os.open(run_dir.lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BootError(f"no launcher runs in {run_dir.path}") from None
    with contextlib.suppress(BlockingIOError):
        if os.read(descriptor, 1) == b"":
            raise BootError(f"the launcher of {run_dir.path} is gone")
    os.set_blocking(descriptor, True)
    threading.Thread(target=_guard, args=(run_dir, descriptor, on_end), name="lifeline", daemon=True).start()


def _guard(run_dir: RunDir, descriptor: int, on_end: Callable[[], None]) -> None:
    os.read(descriptor, 1)
    on_end()
    time.sleep(GRACE_S)
    clear_run(run_dir)
    os.kill(os.getpid(), signal.SIGKILL)


def clear_run(run_dir: RunDir) -> None:
    """Kills what still runs in an abandoned run directory and removes the directory. Any process may do it."""
    for pid in run_dir.pids().values():
        if pid != os.getpid() and _runs_in(pid, run_dir.path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    run_dir.remove()


def has_launcher(run_dir: RunDir) -> bool:
    """Tells whether someone holds the write end of the lifeline."""
    try:
        descriptor = os.open(run_dir.lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        ready, _, _ = select.select([descriptor], [], [], 0)
        return not ready or os.read(descriptor, 1) != b""
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _runs_in(pid: int, path: Path) -> bool:
    """Tells whether process `pid` was started on this run directory (so that a reused pid is never killed)."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(path) in arguments
