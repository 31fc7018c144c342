"""The priority key of each request, and the queue of waiting requests in its order.

A priority key is the arrival time of a request, shifted by `AGING_S` seconds for each level of its priority. A lower
priority number goes first, equal ones go in order of arrival, and `AGING_S` of waiting make up for one level. The key
never changes, so two requests have the same order everywhere: in the queue, for the pages and tokens of a step, and for
preemption. The first request continues until it ends, and no request that arrives more than 2 * `MAX_LEAD_S` later can
precede it, so no request starves.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from messages.ring.requests import Stamps
from scheduler_proc.deciding.requests import PendingReq, PriorityKey

AGING_S = 10
MAX_LEAD_S = 1_000
"""Priorities beyond -100 and 100 count as these."""


def priority_key_of(stamps: Stamps, priority: int, queued_ns: int, number: int) -> PriorityKey:
    """Returns the priority key of the `number`-th request; `queued_ns` is used if it has no time of receipt."""
    lead_s = max(-MAX_LEAD_S, min(priority * AGING_S, MAX_LEAD_S))
    return (stamps.received_ns or queued_ns) + lead_s * 1_000_000_000, number


def by_priority_key(pending: PendingReq) -> PriorityKey:
    return pending.priority_key


class WaitingQueue:
    """The requests without a row, the next one first."""

    def __init__(self) -> None:
        self._queue: list[PendingReq] = []
        self._new: dict[int, PendingReq] = {}
        """By uid: the requests that have arrived since the last `pop_new`."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[PendingReq]:
        return iter(self._queue)

    @property
    def first(self) -> PendingReq:
        return self._queue[0]

    def push(self, pending: PendingReq) -> None:
        """Inserts a request by its priority key."""
        insort(self._queue, pending, key=by_priority_key)
        self._new[pending.uid] = pending

    def remove(self, pending: PendingReq) -> None:
        """Removes a request from any place."""
        index = self.rank(pending)
        assert self._queue[index] is pending, "a request waits in the wrong place"
        del self._queue[index]
        self._new.pop(pending.uid, None)

    def rank(self, pending: PendingReq) -> int:
        """Returns the number of requests before a waiting one."""
        return bisect_left(self._queue, pending.priority_key, key=by_priority_key)

    def pop_new(self) -> list[PendingReq]:
        """Returns the waiting requests that were not there at the last call."""
        new = list(self._new.values())
        self._new.clear()
        return new

    def check(self) -> None:
        """Asserts that the queue is in order and no two requests have one priority key."""
        keys = [pending.priority_key for pending in self._queue]
        assert keys == sorted(set(keys)), "the queue is out of order"
