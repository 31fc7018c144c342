"""Signals as something to wait for: each one becomes a byte in a pipe that the launcher's loop polls."""

import os
import signal
from typing import Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalPipe:
    """Catches the stop signals and SIGCHLD while it is open. Only the main thread can make one.

    A SIGHUP that is ignored (`nohup`) stays ignored.
    """

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self._writer = writer
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        self._old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._old_handlers = {
            number: signal.signal(number, _leave_to_the_pipe)
            for number in (*STOP_SIGNALS, signal.SIGCHLD)
            if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """The descriptor that is readable after a signal."""
        return self._reader

    def read(self) -> bytes:
        """Returns the numbers of the signals that have come, and never waits."""
        try:
            return os.read(self._reader, 4096)
        except BlockingIOError:
            return b""


def _leave_to_the_pipe(number: int, frame: object) -> None:
    """The interpreter writes the wake-up byte only for signals that have a handler in Python."""
