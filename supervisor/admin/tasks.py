"""Work that takes longer than a turn of the launcher's loop, written as a sequence.

A task is a generator. It yields the time (`time.monotonic()`) until which it has nothing to do, is resumed in every
turn (so it looks again at what it waits for), and returns its result. It may also yield `Progress` to be told.
"""

import time
from collections.abc import Callable, Generator
from typing import TypeAlias

from messages.admin import Failed, Progress, Reason, Result
from messages.errors import SluiceError

Task: TypeAlias = Generator[float | Progress, None, Result]
Steps: TypeAlias = Generator[float | Progress, None, None]
"""A part of a task."""


class CommandFailedError(SluiceError):
    """A command cannot be carried out, or has failed."""

    def __init__(self, reason: Reason, message: str):
        super().__init__(message)
        self.failed = Failed(reason, message)


def until(is_over: Callable[[], bool], deadline_s: float) -> Generator[float, None, bool]:
    """Waits; returns whether `is_over` came true before the deadline."""
    while not is_over():
        if time.monotonic() >= deadline_s:
            return False
        yield deadline_s
    return True
