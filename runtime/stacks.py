"""The stacks of a process's Python threads on request, also where its main loop hangs.

The signal's handler writes them itself, in C (`faulthandler`), so neither the interpreter's lock nor a call into a
library is in its way. What kills the process in native code writes them into the same file. A process that is stopped
writes nothing.
"""

import contextlib
import faulthandler
import os
import signal

from runtime.run_dir import RunDir

SIGNAL = signal.SIGUSR1


def write_stacks_on_signal(run_dir: RunDir) -> None:
    """Makes this process append its stacks to its file in the run directory at each signal, and at a fatal error.

    Once the file exists the signal may be sent; before, it would end the process. On a full disk there is no file.
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
    """Has process `pid` write its stacks into its file, which is emptied before; returns whether it could be asked."""
    path = run_dir.stacks_file(pid)
    with contextlib.suppress(OSError):
        if path.exists():
            os.truncate(path, 0)
            os.kill(pid, SIGNAL)
            return True
    return False
