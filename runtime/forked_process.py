"""Processes forked from this one, which has imported their modules: they start in milliseconds and share its memory.

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
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Never, cast

import setproctitle

from messages.channels import send_queued
from runtime.stacks import SIGNAL

MODULE_INDEX = 3
"""The place of MODULE in a command `python -P -m MODULE …`."""

END_FD = 1 << 30

Streams = tuple[int, int, int]
"""Descriptors of standard input, output and error."""

_is_fork = False
"""This process has been forked, so it forks others too."""


def is_fork() -> bool:
    """True in a process that has been forked, with modules that it may never use."""
    return _is_fork


def fork(main: Callable[[], object], title: str, streams: Streams, kept: Sequence[int] = ()) -> int:
    """Runs `main` in a new process and returns its pid. Raises `OSError`.

    Its standard streams are the descriptors `streams`; it closes all others but `kept`. `ps` shows it as `title`.
    """
    pid = os.fork()
    if pid == 0:
        _run(main, title, streams, kept)
    return pid


def open_process(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[bytes] | ForkedProcess":
    """Starts `python -P -m MODULE …` as `Popen` does; in a forked process by a fork. Raises `OSError`."""
    if _is_fork:
        return ForkedProcess(arguments, **options)
    return cast("subprocess.Popen[bytes]", subprocess.Popen(arguments, **options))


class ForkedProcess:
    """A forked process with the parts of `subprocess.Popen` that this program uses; its output is a pipe."""

    def __init__(self, arguments: Sequence[str], *, env: Mapping[str, str], stdin: int, **options: Any):
        """`options` may have `stderr`, `pass_fds` and `process_group`."""
        module, *rest = arguments[MODULE_INDEX:]

        def main() -> None:
            if "process_group" in options:
                os.setpgid(0, options["process_group"])
            sys.argv[:] = [module, *rest]
            os.environ.clear()
            os.environ.update(env)
            warnings.filterwarnings("ignore", r"'.*' found in sys\.modules", RuntimeWarning)  # that is the purpose
            runpy.run_module(module, run_name="__main__", alter_sys=True)

        begin, end = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        reader, writer = os.pipe()
        self.stdin = None if end is None else os.fdopen(end, "wb")
        self.stdout = os.fdopen(reader, "rb")
        self.returncode: int | None = None
        title = shlex.join(["python", "-m", module, *rest])
        try:
            streams = (begin, writer, writer if "stderr" in options else 2)
            self.pid = fork(main, title, streams, options.get("pass_fds", ()))
        finally:
            os.close(begin)
            os.close(writer)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises `TimeoutExpired`."""
        descriptor = os.pidfd_open(self.pid) if self.poll() is None else -1
        if descriptor >= 0:
            select.select([descriptor], [], [], timeout)
            os.close(descriptor)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"{self.pid}", timeout or 0.0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _run(main: Callable[[], object], title: str, streams: Streams, kept: Sequence[int]) -> Never:
    code: object = 1
    try:
        _leave_parent(title, streams, kept)
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _leave_parent(title: str, streams: Streams, kept: Sequence[int]) -> None:
    """Gives up the parent's signal handlers and descriptors. Its objects stay: none may close a descriptor later."""
    global _is_fork  # noqa: PLW0603 (true for the rest of the process)
    _is_fork = True
    gc.freeze()
    atexit._clear()  # pyright: ignore[reportPrivateUsage]
    atexit.register(send_queued)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.unregister(SIGNAL)
    faulthandler.disable()
    for target, (source, name) in enumerate(zip(streams, ("stdin", "stdout", "stderr"), strict=True)):
        os.dup2(source, target)
        mode = "w" if target else "r"
        setattr(sys, name, os.fdopen(target, mode, buffering=1, errors="backslashreplace", closefd=False))
    first = len(streams)
    for end in (*sorted(kept), END_FD):
        os.closerange(first, end)
        first = end + 1
    setproctitle.setproctitle(title)
