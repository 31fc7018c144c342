"""Writes the stacks of a process's Python threads on request, even if its main loop hangs.

The signal handler writes them in C (`faulthandler`), so neither the GIL nor a call into a library blocks it. A crash in
native code writes them into the same file. A stopped process (SIGSTOP) writes nothing.
"""

import contextlib
import faulthandler
import os
import signal

from runtime.run_dir import RunDir

SIGNAL = signal.SIGUSR1


def write_stacks_on_signal(run_dir: RunDir) -> None:
    """Makes this process append its stacks to its file in the run directory at each signal and at a fatal error.

    The signal may be sent once the file exists; before that, it would end the process. A full disk prevents the file.
    """
    path = run_dir.stacks_file(os.getpid())
    new = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)  # stays open to the end
        faulthandler.enable(file)
        faulthandler.register(SIGNAL, file)
        new.rename(path)


def ask_for_stacks(run_dir: RunDir, pid: int) -> bool:
    """Empties the stacks file of process `pid` and makes the process write it. Returns False if that is impossible."""
    path = run_dir.stacks_file(pid)
    with contextlib.suppress(OSError):
        if path.exists():
            os.truncate(path, 0)
            os.kill(pid, SIGNAL)
            return True
    return False
