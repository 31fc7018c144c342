"""The engines of a server (`--data-parallel`), each with its own KV cache: their names, and senders to them.

An engine is a scheduler, its rank 0, together with its other ranks (`--tensor-parallel`, `--pipeline-parallel`), which
run the same steps.
The frontend chooses an engine for each request; messages about the request carry its number, counted from 1.
"""

import time
from collections.abc import Callable
from typing import Any

from messages.channels import Sender
from messages.control.processes import kind_of, place_of, worker_name
from messages.ring.requests import ToScheduler

SCHEDULER, RANK = "scheduler", "rank"
TIDY_INTERVAL_S = 1.0


def engine_name(engine: int) -> str:
    """Returns the name of the process: `scheduler`, then `scheduler-2` …"""
    return worker_name(SCHEDULER, engine)


def rank_name(rank: int, engine: int = 1) -> str:
    """Returns the name of a rank other than the scheduler: `rank1`, or `rank1-2` in the second engine."""
    return worker_name(f"{RANK}{rank}", engine)


def rank_of(name: str) -> int:
    """`rank1-2` → 1; 0 for a scheduler."""
    return int(place_of(name).partition("-")[0].removeprefix(RANK)) if kind_of(name) == RANK else 0


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
