"""The lifeline: no process outlives its launcher, and no file outlives the run, however the launcher died.

The launcher holds the write end of a FIFO in the run directory; end of file tells every process that it is gone, also
one that was started by hand. A guard thread waits for it: it asks the main loop to stop and, whatever that does, ends
the process, its hung siblings and the run directory soon after.
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
"""What a process gets between the end of its launcher and its own."""

_PR_SET_PDEATHSIG = 1


def make_lifeline(run_dir: RunDir) -> int:
    """Creates the FIFO and returns the descriptor that the launcher holds open for the run."""
    os.mkfifo(run_dir.lifeline, 0o600)
    return os.open(run_dir.lifeline, os.O_RDWR | os.O_CLOEXEC)


def ask_for_death_signal(parent_pid: int, number: int = signal.SIGTERM) -> None:
    """Has the kernel send the signal when the parent dies (Linux; elsewhere the lifeline alone serves).

    Call it when SIGTERM has a handler: its default action would leave nobody to remove the run directory.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), number)


def watch_lifeline(run_dir: RunDir, on_end: Callable[[], None]) -> None:
    """Starts the guard thread; it calls `on_end` when the launcher is gone.

    Raises `BootError` where it is gone already, and clears what it left behind.
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
    """Gives the other processes of an abandoned run their grace, then clears the run."""
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and other_processes(run_dir):
        time.sleep(0.02)
    clear_run(run_dir)


def clear_run(run_dir: RunDir) -> list[int]:
    """Kills what still runs in an abandoned run directory and removes the directory; returns the pids.

    Any process may do it. No-op if a launcher holds the directory (a new run may have taken it over already), or if it
    is not this user's own.
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
    """Tells whether someone holds the write end of the lifeline."""
    try:
        descriptor = os.open(run_dir.lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    try:
        return os.read(descriptor, 1) != b""  # a poll would not do: it does not tell of a writer that left before
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
