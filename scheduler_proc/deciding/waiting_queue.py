"""The priority key of each request, and the queue of waiting requests in its order.

A priority key is the arrival time of a request, shifted by `AGING_S` seconds for each level of its priority. A lower
priority number goes first, equal ones go in order of arrival, and `AGING_S` of waiting make up for one level. The first
request continues until it ends, and no request that arrives more than 2 * `MAX_LEAD_S` later can precede it, so no
request starves.

The requests of one HTTP request with one priority, a group, take turns with others: the queue has one of a group in
line, and the next one enters behind all that have arrived by then. A request in line keeps its key, unless it leaves
its row to another group; so two requests have the same order everywhere: in the line, for the pages and tokens of a
step, and for preemption.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from itertools import chain

from messages.ring.requests import Stamps
from scheduler_proc.deciding.requests import Group, PendingReq, PriorityKey

AGING_S = 10
MAX_LEAD_S = 1_000
"""Priorities beyond -100 and 100 count as these."""


def lead_ns_of(priority: int) -> int:
    """Returns the part of a priority key that depends on the priority."""
    return max(-MAX_LEAD_S, min(priority * AGING_S, MAX_LEAD_S)) * 1_000_000_000


def priority_key_of(stamps: Stamps, priority: int, queued_ns: int, number: int) -> PriorityKey:
    """Returns the priority key of the `number`-th request; `queued_ns` is used if it has no time of receipt."""
    return (stamps.received_ns or queued_ns) + lead_ns_of(priority), number


def by_priority_key(pending: PendingReq) -> PriorityKey:
    return pending.priority_key


class WaitingQueue:
    """The requests without a row: those in `line`, the next one first, then the others of their groups."""

    def __init__(self) -> None:
        self.line: list[PendingReq] = []
        self._behind: dict[Group, deque[PendingReq]] = {}
        """By group: the requests that wait until the group's one in `_heads` has left the line."""
        self._heads: dict[Group, PendingReq] = {}
        self._num_behind = 0
        self._latest_ns = 0
        """The latest arrival of a request in line."""
        self._new: dict[int, PendingReq] = {}
        """By uid: the requests that have arrived since the last `pop_new`."""

    def __len__(self) -> int:
        return len(self.line) + self._num_behind

    def __iter__(self) -> Iterator[PendingReq]:
        return chain(self.line, *self._behind.values())

    @property
    def has_any_behind(self) -> bool:
        """True if a request waits for the one of its group that is in line."""
        return self._num_behind > 0

    @property
    def first(self) -> PendingReq:
        return self.line[0]

    def push(self, pending: PendingReq, *, ends_turn: bool = False) -> None:
        """Inserts a request by its priority key, or behind the one of its group that is in line.

        One that had a row returns to its place or, with `ends_turn`, before those of its group that are not in line.
        """
        self._new[pending.uid] = pending
        if pending.was_in_line and not ends_turn:
            insort(self.line, pending, key=by_priority_key)
        elif pending.group not in self._heads:
            self._enter(pending, is_later=ends_turn)
        else:
            behind = self._behind.setdefault(pending.group, deque())
            (behind.appendleft if ends_turn else behind.append)(pending)
            pending.was_in_line = False
            self._num_behind += 1

    def _enter(self, pending: PendingReq, *, is_later: bool) -> None:
        """Puts a request in line for its group; if it `is_later`, as one that arrives now."""
        lead_ns = lead_ns_of(pending.sampling_params.priority)
        arrival_ns = pending.priority_key[0] - lead_ns
        if is_later:
            arrival_ns = max(arrival_ns, self._latest_ns + 1)
            pending.priority_key = arrival_ns + lead_ns, pending.priority_key[1]
        self._latest_ns = max(self._latest_ns, arrival_ns)
        self._heads[pending.group] = pending
        pending.was_in_line = True
        insort(self.line, pending, key=by_priority_key)

    def remove(self, pending: PendingReq) -> None:
        """Removes a request from any place."""
        self._new.pop(pending.uid, None)
        if not pending.was_in_line:
            self._behind[pending.group].remove(pending)
            self._num_behind -= 1
            self._trim(pending.group)
            return
        index = bisect_left(self.line, pending.priority_key, key=by_priority_key)
        assert self.line[index] is pending, "a request waits in the wrong place"
        del self.line[index]
        if self._heads.get(pending.group) is pending:
            del self._heads[pending.group]
            if pending.group in self._behind:
                self._enter(self._behind[pending.group].popleft(), is_later=True)
                self._num_behind -= 1
                self._trim(pending.group)

    def _trim(self, group: Group) -> None:
        if not self._behind[group]:
            del self._behind[group]

    def rank(self, pending: PendingReq) -> int:
        """Returns the number of requests before a waiting one, as far as is known now."""
        if not pending.was_in_line:
            return len(self.line) + len(self._behind[pending.group]) - 1
        return bisect_left(self.line, pending.priority_key, key=by_priority_key)

    def pop_new(self) -> list[PendingReq]:
        """Returns the waiting requests that were not there at the last call."""
        new = list(self._new.values())
        self._new.clear()
        return new

    def check(self) -> None:
        """Asserts that the line is in order, no two requests have one priority key, and each group has its turn."""
        keys = [pending.priority_key for pending in self.line]
        assert keys == sorted(set(keys)), "the queue is out of order"
        assert all(self._heads[group] in self.line for group in self._heads), "the turn of a group is not in line"
        assert self._behind.keys() <= self._heads.keys(), "requests wait behind none of their group"
        assert self._num_behind == sum(map(len, self._behind.values())), "the count of requests not in line is wrong"
