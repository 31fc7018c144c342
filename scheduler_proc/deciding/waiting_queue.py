"""Who goes first: the priority key of each request, and the queue of those that wait, in its order.

A priority key is the time at which a request came, moved by `AGING_S` seconds for each level of its priority: a lower
priority number goes first, equal ones in the order in which they came, and every `AGING_S` of waiting make up for one
level. A priority key never changes, so the order of two requests is the same whenever it is asked for: in the queue,
for the pages and tokens of a step, and for who gives way. Whoever is first goes on until it ends, and no request that
comes more than 2 * `MAX_LEAD_S` later can be before it, so nobody starves.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from messages.ring.requests import Stamps
from scheduler_proc.deciding.requests import PendingReq, PriorityKey

AGING_S = 10
MAX_LEAD_S = 1_000
"""Priorities beyond -100 and 100 are as those."""


def priority_key_of(stamps: Stamps, priority: int, queued_ns: int, number: int) -> PriorityKey:
    """Returns the priority key of a request that came as the `number`-th; `queued_ns` is for one without a stamp."""
    lead_s = max(-MAX_LEAD_S, min(priority * AGING_S, MAX_LEAD_S))
    return (stamps.received_ns or queued_ns) + lead_s * 1_000_000_000, number


def by_priority_key(pending: PendingReq) -> PriorityKey:
    return pending.priority_key


class WaitingQueue:
    """The requests without a row, the one that is next first."""

    def __init__(self) -> None:
        self._queue: list[PendingReq] = []
        self._new: dict[int, PendingReq] = {}
        """By uid: those that have come since the last `pop_new`."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[PendingReq]:
        return iter(self._queue)

    @property
    def first(self) -> PendingReq:
        return self._queue[0]

    def push(self, pending: PendingReq) -> None:
        """Puts a request into its place."""
        insort(self._queue, pending, key=by_priority_key)
        self._new[pending.uid] = pending

    def remove(self, pending: PendingReq) -> None:
        """Removes a request, wherever it is."""
        index = self.rank(pending)
        assert self._queue[index] is pending, "a request waits in another place than its own"
        del self._queue[index]
        self._new.pop(pending.uid, None)

    def rank(self, pending: PendingReq) -> int:
        """Returns how many others go before one that waits."""
        return bisect_left(self._queue, pending.priority_key, key=by_priority_key)

    def pop_new(self) -> list[PendingReq]:
        """Returns those that wait and were not there at the last call."""
        new = list(self._new.values())
        self._new.clear()
        return new

    def check(self) -> None:
        """Asserts that the queue is in order and no two requests have one priority key."""
        keys = [pending.priority_key for pending in self._queue]
        assert keys == sorted(set(keys)), "the queue is out of order"
