"""The engines of a server (`--data-parallel`), each with a KV cache of its own: their names, and the way to each.

A message about a request carries the number of its engine, from 1 on, as `engine`; the frontend has chosen it. An
engine is a scheduler, which is its rank 0, and its other ranks (`--tensor-parallel`), which run the same steps.
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
    """Returns the name of a process other than the scheduler: `rank1`, of the second engine `rank1-2`."""
    return worker_name(f"{RANK}{rank}", engine)


def rank_of(name: str) -> int:
    """`rank1-2` → 1; 0 for a scheduler."""
    return int(place_of(name).partition("-")[0].removeprefix(RANK)) if kind_of(name) == RANK else 0


class SchedulerSenders:
    """A sender to each scheduler: to the first from the beginning, to another from the first message for it on."""

    def __init__(self, open_sender: Callable[[str], Sender[Any]], close_sender: Callable[[Sender[Any]], None]):
        self._open_sender = open_sender
        self._close_sender = close_sender
        self._senders: dict[int, Sender[ToScheduler]] = {1: open_sender(SCHEDULER)}
        self._due_s = 0.0

    def send(self, engine: int, message: ToScheduler) -> None:
        """Sends `message` to one scheduler; dropped where that has stopped reading."""
        sender = self._senders.get(engine)
        if sender is None:
            sender = self._senders[engine] = self._open_sender(engine_name(engine))
        sender.send_or_drop(message)

    def tidy(self) -> None:
        """Closes the ways to schedulers that have left: they have taken their sockets with them.

        One that is only being replaced gets a new way with the next message for it. It looks once a second, so it may
        be called in each turn of a loop.
        """
        if len(self._senders) > 1 and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + TIDY_INTERVAL_S
            gone = [engine for engine, sender in self._senders.items() if engine > 1 and not sender.path.exists()]
            for engine in gone:
                self._close_sender(self._senders.pop(engine))

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
