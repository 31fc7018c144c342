"""What a process writes, line by line."""

import os

READ_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 16
"""A longer line is cut."""


class OutputLines:
    """The lines of a pipe that does not block. `has_ended`: all its writers have closed it."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.has_ended = False
        self._unfinished = b""

    def read(self) -> list[str] | None:
        """Returns the lines that have arrived, `None` if nothing has. Never waits."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return None
        self.has_ended = not data
        *whole, rest = (self._unfinished + data).split(b"\n")
        if rest and (self.has_ended or len(rest) >= MAX_LINE_BYTES):
            whole, rest = [*whole, rest], b""
        self._unfinished = rest
        return [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in whole]
