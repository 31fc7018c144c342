"""Sends replies to the detokenizer: at once, except tokens that no client gets before the end of its answer."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from messages.channels import Sender
from messages.ring.replies import DetokenizeMsg, OpenStream, ToDetokenizer
from messages.ring.timeline import ScheduleReport
from scheduler_proc.deciding.scheduler import Scheduler

HOLD_NS = 100_000_000
"""How long tokens may wait for those of later steps. A message of several steps takes the other processes little longer
than one of a single step, since each message has to refill their caches."""


@dataclass(eq=False)
class ReplySender:
    """Sends the scheduler's replies to the detokenizer in order, as engine number `engine`. Never blocks."""

    _scheduler: Scheduler
    _sender: Sender[ToDetokenizer]
    _engine: int = 1
    _clock_ns: Callable[[], int] = time.monotonic_ns
    _held: list[ToDetokenizer] = field(default_factory=list[ToDetokenizer])

    def send(self) -> None:
        """Sends new and held replies, or holds them if all of them can wait."""
        replies = self._scheduler.pop_replies()
        if not replies and not self._held:
            return
        can_wait = not self._scheduler.needs_token_delivery and all(map(_can_wait, replies))
        self._held += replies
        first = self._held[0]
        if not (can_wait and isinstance(first, DetokenizeMsg) and self._clock_ns() < first.committed_ns + HOLD_NS):
            self.flush()

    def flush(self) -> None:
        """Sends held replies. Call it after `send`, before the loop waits."""
        held, self._held = self._held, []
        for reply in held:
            if self._engine > 1 and isinstance(reply, OpenStream | DetokenizeMsg | ScheduleReport):
                reply = msgspec.structs.replace(reply, engine=self._engine)
            self._sender.send_or_drop(reply)

    def close(self) -> None:
        """Sends held replies and closes the channel."""
        self.flush()
        self._sender.close()


def _can_wait(reply: ToDetokenizer) -> bool:
    """True for tokens that are neither the first nor the last ones of a request."""
    return isinstance(reply, DetokenizeMsg) and not reply.finished and not reply.prefilled
