"""Processes forked from this one, which has imported their modules: each starts in milliseconds and shares its memory.

The parent may have threads, but must not have computed anything with torch or used a GPU.
"""

import atexit
import faulthandler
import gc
import os
import runpy
import select
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Never

import setproctitle

from runtime.stacks import SIGNAL
from supervisor.python_process import MODULE_INDEX

FIRST_FD, END_FD = 3, 1 << 30


def fork(main: Callable[[], object], title: str, output: int, kept: Sequence[int] = ()) -> int:
    """Runs `main` in a new process, in a process group of its own, and returns its pid. Raises `OSError`.

    Its output goes to the descriptor `output`; all others are closed in it but `kept`. `title` is shown by `ps`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run(main, title, output, kept)
    return pid


def _run(main: Callable[[], object], title: str, output: int, kept: Sequence[int]) -> Never:
    code: object = 1
    try:
        _leave_parent(title, output, kept)
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _leave_parent(title: str, output: int, kept: Sequence[int]) -> None:
    """Gives up the parent's signal handlers and descriptors. Its objects stay: their descriptors are not theirs now."""
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.unregister(SIGNAL)
    faulthandler.disable()
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    first = FIRST_FD
    for end in (*sorted(kept), END_FD):
        os.closerange(first, end)
        first = end + 1
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    setproctitle.setproctitle(title)


class ForkedProcess:
    """A forked process, with what `Child` uses of `subprocess.Popen`."""

    def __init__(self, pid: int, output: int):
        self.pid = pid
        self.stdin = None
        self.stdout = open(output, "rb", buffering=0)  # noqa: SIM115
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout_s: float) -> None:
        """Waits for its end. Raises `TimeoutExpired`."""
        descriptor = os.pidfd_open(self.pid)
        select.select([descriptor], [], [], timeout_s)
        os.close(descriptor)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(f"{self.pid}", timeout_s)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_program(arguments: Sequence[str], environment: Mapping[str, str], kept: Sequence[int]) -> ForkedProcess:
    """Runs `python … -m MODULE …` without another Python. Raises `OSError`."""
    module, *rest = arguments[MODULE_INDEX:]

    def main() -> None:
        sys.argv = [module, *rest]
        os.environ.clear()
        os.environ.update(environment)
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    reader, writer = os.pipe()
    try:
        return ForkedProcess(fork(main, shlex.join(["python", "-m", module, *rest]), writer, kept), reader)
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
