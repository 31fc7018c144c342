"""The priority key of each request, and the queue of waiting requests in its order.

A priority key is the arrival time of a request, shifted by `AGING_S` seconds for each level of its priority. A lower
priority number goes first, equal ones go in order of arrival, and `AGING_S` of waiting make up for one level. The first
request continues until it ends, and no request that arrives more than 2 * `MAX_LEAD_S` later can precede it, so no
request starves.

The requests of one HTTP request with one priority, a group, take turns with others: the queue has one of a group in
line, and the next one enters behind all that have arrived by then. A request in line keeps its key, unless it leaves
its row to another group; so two requests have the same order everywhere: in the line, for the pages and tokens of a
step, and for preemption.

Each client has a line for each priority. Without other clients its lines are one; `shares.py` has the order of several.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby, zip_longest
from operator import itemgetter

from messages.ring.requests import Stamps
from scheduler_proc.deciding.requests import Flow, Group, PendingReq, PriorityKey

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


_level = itemgetter(1)


class WaitingQueue:
    """The requests without a row: those in `lines`, the next one of each first, then the others of their groups."""

    def __init__(self) -> None:
        self.lines: dict[Flow, list[PendingReq]] = {}
        self.num_tokens: Counter[Flow] = Counter()
        """The tokens of all requests of each flow."""
        self.num_requests: Counter[Flow] = Counter()
        self._behind: dict[Group, deque[PendingReq]] = {}
        """By group: the requests that wait until the group's one in `_heads` has left the line."""
        self._heads: dict[Group, PendingReq] = {}
        self._num_behind = 0
        self._latest_ns = 0
        """The latest arrival of a request in line."""
        self._new: dict[int, PendingReq] = {}
        """By uid: the requests that have arrived since the last `pop_new`."""

    def __len__(self) -> int:
        return self.num_requests.total()

    def __iter__(self) -> Iterator[PendingReq]:
        return chain(self.line, *self._behind.values())

    @property
    def line(self) -> Iterable[PendingReq]:
        """The requests in line of all flows, by priority key."""
        lines = self.lines.values()
        return next(iter(lines)) if len(lines) == 1 else merge(*lines, key=by_priority_key)

    def in_turn(self, flows: Sequence[Flow]) -> Iterator[PendingReq]:
        """Yields the requests as their clients will take turns, as far as is known now; `flows` are in order."""
        known = [flow for flow in dict.fromkeys([*flows, *self.lines]) if flow in self.lines]
        for _, level in groupby(sorted(known, key=_level), key=_level):
            for turns in zip_longest(*[self.lines[flow] for flow in level]):
                yield from (pending for pending in turns if pending is not None)
        yield from chain.from_iterable(self._behind.values())

    @property
    def has_any_behind(self) -> bool:
        """True if a request waits for the one of its group that is in line."""
        return self._num_behind > 0

    @property
    def first(self) -> PendingReq:
        return next(iter(self.line))

    def push(self, pending: PendingReq, *, ends_turn: bool = False) -> None:
        """Inserts a request by its priority key, or behind the one of its group that is in line.

        One that had a row returns to its place or, with `ends_turn`, before those of its group that are not in line.
        """
        self._new[pending.uid] = pending
        self.num_requests[pending.flow] += 1
        self.num_tokens[pending.flow] += len(pending.token_ids)
        if pending.was_in_line and not ends_turn:
            self._insert(pending)
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
        self._insert(pending)

    def _insert(self, pending: PendingReq) -> None:
        insort(self.lines.setdefault(pending.flow, []), pending, key=by_priority_key)

    def remove(self, pending: PendingReq) -> None:
        """Removes a request from any place."""
        self._new.pop(pending.uid, None)
        self.num_requests[pending.flow] -= 1
        self.num_tokens[pending.flow] -= len(pending.token_ids)
        if not pending.was_in_line:
            self._behind[pending.group].remove(pending)
            self._num_behind -= 1
            self._trim(pending.group)
            return
        line = self.lines[pending.flow]
        index = bisect_left(line, pending.priority_key, key=by_priority_key)
        assert line[index] is pending, "a request waits in the wrong place"
        del line[index]
        if self._heads.get(pending.group) is pending:
            del self._heads[pending.group]
            if pending.group in self._behind:
                self._enter(self._behind[pending.group].popleft(), is_later=True)
                self._num_behind -= 1
                self._trim(pending.group)
        if not line:
            del self.lines[pending.flow], self.num_tokens[pending.flow], self.num_requests[pending.flow]

    def _trim(self, group: Group) -> None:
        if not self._behind[group]:
            del self._behind[group]

    def rank(self, pending: PendingReq) -> int:
        """Returns the number of requests before a waiting one, as far as is known now."""
        is_shared = len({client for client, _ in self.lines}) > 1
        lines = [self.lines[pending.flow]] if is_shared else self.lines.values()
        if pending.was_in_line:
            place = sum([bisect_left(line, pending.priority_key, key=by_priority_key) for line in lines])
        else:
            place = sum(map(len, lines)) + len(self._behind[pending.group]) - 1
        others = self.lines.items() if is_shared else ()
        return place + sum([_num_passing(place, pending.flow, flow, len(line)) for flow, line in others])

    def pop_new(self) -> list[PendingReq]:
        """Returns the waiting requests that were not there at the last call."""
        new = list(self._new.values())
        self._new.clear()
        return new

    def check(self) -> None:
        """Asserts that the line is in order, no two requests have one priority key, and each group has its turn."""
        keys = [pending.priority_key for line in self.lines.values() for pending in line]
        assert len(keys) == len(set(keys)), "two requests have one place"
        assert all(line == sorted(line, key=by_priority_key) for line in self.lines.values()), "a line is out of order"
        heads = self._heads.values()
        assert all(head in self.lines[head.flow] for head in heads), "the turn of a group is not in line"
        num_tokens = Counter[Flow]()
        for pending in self:
            num_tokens[pending.flow] += len(pending.token_ids)
        assert (self.num_tokens, self.lines.keys()) == (num_tokens, num_tokens.keys()), "the tokens of a flow are wrong"
        assert len(self) == len(keys) + self._num_behind, "the count of waiting requests is wrong"
        assert self._behind.keys() <= self._heads.keys(), "requests wait behind none of their group"
        assert self._num_behind == sum(map(len, self._behind.values())), "the count of requests not in line is wrong"


def _num_passing(place: int, flow: Flow, other: Flow, num_waiting: int) -> int:
    """Returns the number of requests of another flow that are before the one at `place` of its own."""
    return (
        0 if other == flow or other[1] > flow[1] else num_waiting if other[1] < flow[1] else min(num_waiting, place + 1)
    )
