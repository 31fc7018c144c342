"""Work that takes longer than a turn of the launcher's loop, written as a sequence.

A task is a generator. It yields the time (`time.monotonic()`) until which it has nothing to do, is resumed in every
turn (so it looks again at what it waits for), and returns its result. It may also yield `Progress` to be told.
"""

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TypeAlias

from messages.control.admin import Answer, Failed, Progress, Reason, Result
from messages.errors import SluiceError

Task: TypeAlias = Generator[float | Progress, None, Result]
Steps: TypeAlias = Generator[float | Progress, None, None]
"""A part of a task."""


class CommandFailedError(SluiceError):
    """A command cannot be carried out, or has failed."""

    def __init__(self, reason: Reason, message: str):
        super().__init__(message)
        self.failed = Failed(reason, message)


Reply = Callable[[Answer], None]


class OpenCommand:
    """A task, the receiver of its result, and the time until which it has nothing to do."""

    def __init__(self, ask_id: int, task: Task, reply: Reply):
        self._ask_id = ask_id
        self._task = task
        self._reply = reply
        self.due_s = 0.0

    def resume(self) -> bool:
        """Runs as far as it can; returns whether the command is still open."""
        try:
            while isinstance(step := next(self._task), Progress):
                self.answer(step)
        except StopIteration as end:
            self.answer(end.value)
        except CommandFailedError as error:
            self.answer(error.failed)
        except OSError as error:  # a full disk or too many open files fail the command, not the server
            self.answer(Failed("failed", str(error)))
        else:
            self.due_s = step
            return True
        return False

    def answer(self, result: Result) -> None:
        self._reply(Answer(self._ask_id, result))

    def close(self) -> None:
        """Ends the task immediately; its unwritten output is lost."""
        with suppress(OSError, CommandFailedError):
            self._task.close()


def until(is_over: Callable[[], bool], deadline_s: float) -> Generator[float, None, bool]:
    """Waits; returns whether `is_over` came true before the deadline."""
    while not is_over():
        if time.monotonic() >= deadline_s:
            return False
        yield deadline_s
    return True
