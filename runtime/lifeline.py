"""The lifeline: no process outlives its launcher and no file outlives the run, however the launcher dies.

The launcher holds the write end of a FIFO in the run directory. End of file means that it is gone, also for processes
started by hand. A guard thread waits for it and asks the main loop to stop. After a grace period it kills the process
and its hung siblings and removes the run directory, even if the main loop has not stopped.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from messages.errors import BootError
from runtime.run_dir import LOCK_PATIENCE_S, RunDir, kill_processes, other_processes, try_lock

GRACE_S = 1.0
"""Seconds between the end of the launcher and that of the process."""

_PR_SET_PDEATHSIG = 1


def make_lifeline(run_dir: RunDir) -> int:
    """Creates the FIFO and returns the descriptor that the launcher keeps open during the run."""
    os.mkfifo(run_dir.lifeline, 0o600)
    return os.open(run_dir.lifeline, os.O_RDWR | os.O_CLOEXEC)


def ask_for_death_signal(parent_pid: int, number: int = signal.SIGTERM) -> None:
    """Makes the kernel send the signal when the parent dies (Linux only; elsewhere only the lifeline ends the process).

    Call this once SIGTERM has a handler: after its default action no process would remove the run directory.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), number)


def watch_lifeline(run_dir: RunDir, on_end: Callable[[], None]) -> None:
    """Starts the guard thread, which calls `on_end` when the launcher is gone.

    If it is already gone, clears the run and raises `BootError`.
    """
    try:
        descriptor = os.open(run_dir.lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BootError(f"no launcher runs in {run_dir.path}") from None
    with contextlib.suppress(BlockingIOError):
        if os.read(descriptor, 1) == b"":
            clear_run(run_dir)
            raise BootError(f"the launcher of {run_dir.path} is gone")
    os.set_blocking(descriptor, True)
    threading.Thread(target=_guard, args=(run_dir, descriptor, on_end), name="lifeline", daemon=True).start()


def _guard(run_dir: RunDir, descriptor: int, on_end: Callable[[], None]) -> None:
    os.read(descriptor, 1)
    on_end()
    time.sleep(GRACE_S)
    clear_run(run_dir)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_abandoned_run(run_dir: RunDir) -> None:
    """Gives the other processes of an abandoned run the grace period, then clears the run."""
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and other_processes(run_dir):
        time.sleep(0.02)
    clear_run(run_dir)


def clear_run(run_dir: RunDir) -> list[int]:
    """Kills the remaining processes of an abandoned run and removes its directory. Returns their pids.

    Any process may call this. No-op if a launcher holds the directory, which a new run may already have taken over, or
    if it is not this user's own.
    """
    deadline = time.monotonic() + LOCK_PATIENCE_S
    with contextlib.suppress(OSError):
        while (lock := try_lock(run_dir)) is None and time.monotonic() < deadline:
            time.sleep(0.02)  # a dying launcher releases its lifeline and its lock at slightly different times
        if lock is not None:
            pids = kill_processes(run_dir)
            run_dir.remove()
            os.close(lock)
            return pids
    return []


def has_launcher(run_dir: RunDir) -> bool:
    """True if a process holds the write end of the lifeline."""
    try:
        descriptor = os.open(run_dir.lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    try:
        return os.read(descriptor, 1) != b""  # a poll would not report a writer that has already left
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
