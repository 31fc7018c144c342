"""Senders to the engines of a server (`--data-parallel`), each of which has its own KV cache.

The frontend chooses an engine for each request; messages about the request carry its number, counted from 1.
"""

import time
from collections.abc import Callable
from typing import Any

from messages.channels import Sender
from messages.engine_names import SCHEDULER, engine_name
from messages.ring.requests import ToScheduler

TIDY_INTERVAL_S = 1.0


class SchedulerSenders:
    """Senders to the schedulers. The sender to scheduler 1 is opened at once, others with their first message."""

    def __init__(self, open_sender: Callable[[str], Sender[Any]], close_sender: Callable[[Sender[Any]], None]):
        self._open_sender = open_sender
        self._close_sender = close_sender
        self._senders: dict[int, Sender[ToScheduler]] = {1: open_sender(SCHEDULER)}
        self._due_s = 0.0

    def send(self, engine: int, message: ToScheduler) -> None:
        """Sends `message` to a scheduler. Drops it if that scheduler has stopped reading."""
        sender = self._senders.get(engine)
        if sender is None:
            sender = self._senders[engine] = self._open_sender(engine_name(engine))
        sender.send_or_drop(message)

    def tidy(self) -> None:
        """Closes the senders to schedulers whose sockets have disappeared.

        If such a scheduler is only being replaced, the next message to it opens a new sender. Checks once a second, so
        the main loop may call this in every iteration.
        """
        if len(self._senders) > 1 and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + TIDY_INTERVAL_S
            gone = [engine for engine, sender in self._senders.items() if engine > 1 and not sender.path.exists()]
            for engine in gone:
                self._close_sender(self._senders.pop(engine))

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
