"""The latest output of a process, over all its incarnations, for the operator."""

from collections import deque
from collections.abc import Iterable

MAX_LINES = 1000
MAX_LINE_CHARS = 4096
"""The rest of a longer line is not kept; with `MAX_LINES` this bounds the memory of one process's log."""


class LogRing:
    """The last lines, each with a number; the first ever is 0."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self.next_number = 0

    def extend(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line[:MAX_LINE_CHARS])
            self.next_number += 1

    def last(self, num_lines: int) -> list[str]:
        """Returns at most `num_lines` lines, the newest last."""
        return list(self._lines)[-num_lines:] if num_lines > 0 else []

    def since(self, number: int) -> list[str]:
        """Returns the lines from `number` on, as far as they are still kept."""
        return self.last(self.next_number - number)
