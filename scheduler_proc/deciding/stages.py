"""The state of each request, and every transition between states."""

from bisect import insort
from collections import Counter
from collections.abc import Collection
from itertools import count

from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import Group, PendingReq, PriorityKey, State
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.waiting_queue import WaitingQueue, priority_key_of


class Stages:
    """Every request by uid, and again in the collection of its state.

    WAITING: `waiting`, or `compiling` until its grammar is compiled. PREFILL: `prefilling`. DECODE: `decode`, or
    `paused`: in no step, but with its pages. FINISHED: in none. `waiting`, `prefilling` and `paused` are in order of
    priority: rows are admitted from the front, and the last in priority is preempted first.
    """

    def __init__(self, cache: BlockAllocator):
        self.requests: dict[int, PendingReq] = {}
        self.waiting = WaitingQueue()
        self.compiling: dict[int, PendingReq] = {}
        self.running: dict[int, Req] = {}
        self.prefilling: list[Req] = []
        self.decode = DecodeRows(cache.page_size)
        self.num_delivered = 0
        """Requests whose tokens must be sent as they come."""
        self.num_live = 0
        """Requests that do not give way."""
        self.num_live_rows = 0
        """Requests that do not give way, in PREFILL or DECODE."""
        self.paused: list[Req] = []
        self.num_yielding = 0
        """Rows in `decode` whose requests give way."""
        self.rows_by_group: Counter[Group] = Counter()
        """The number of running requests of each group that has any."""
        self.rows_by_client: Counter[str] = Counter()
        """The same for clients."""
        self.share_of: dict[str, int] = {}
        """The share of each client that has requests."""
        self._num_of: Counter[str] = Counter()
        """The number of requests of each client."""
        self.num_left = 0
        """The number of rows that have ended or been preempted so far."""
        self._cache = cache
        self._numbers = count()

    def last_in_priority(self, rows: Collection[Req]) -> Req:
        """Returns the request of lowest priority among `rows`; a paused one first, as it does not use its pages.

        One that is not the first of its group goes before another of the same priority, from the largest group first.
        """
        if self.paused:
            return self.paused[-1]
        last = max(rows, key=priority_key_of_row)
        firsts: dict[Group, Req] = {}
        for req in sorted(self.running.values(), key=priority_key_of_row):
            firsts.setdefault(req.pending.group, req)
        least = last.pending.sampling_params.priority
        others = [
            req
            for req in rows
            if req.pending.sampling_params.priority >= least and firsts[req.pending.group] is not req
        ]
        return max(others, key=self._turn_key, default=last)

    def max_rows(self, client: str) -> int:
        """Returns the number of rows of the client's largest group."""
        if len(self.share_of) == 1:
            return max(self.rows_by_group.values(), default=0)
        groups = {req.pending.group for req in self.running.values() if req.pending.client == client}
        return max([self.rows_by_group[group] for group in groups], default=0)

    def rows_beyond_turn(self, pending: PendingReq) -> list[Req]:
        """Returns the rows that may leave for a waiting request, whose group then still has fewer, the last one last.

        They are those of the client's largest group, if that has at least two more rows, without a better priority.
        """
        most, priority = self.max_rows(pending.client), pending.sampling_params.priority
        if most < self.rows_by_group[pending.group] + 2:
            return []
        rows = [
            req
            for req in self.running.values()
            if self.rows_by_group[req.pending.group] == most
            and req.pending.client == pending.client
            and req.pending.sampling_params.priority >= priority
        ]
        return sorted(rows, key=priority_key_of_row)[1:]

    def has_large_group(self, num_tokens: int) -> bool:
        """True if the unfinished prompts of a group have more tokens than this, or requests wait for its turn.

        If there are several clients, those of a client count together.
        """
        sizes, is_shared = Counter[Group | str](), len(self.share_of) > 1
        for pending in (*(req.pending for req in self.prefilling), *self.waiting.line):
            sizes[pending.client if is_shared else pending.group] += len(pending.token_ids)
        return self.waiting.has_any_behind or max(sizes.values(), default=0) > num_tokens

    def _turn_key(self, req: Req) -> tuple[int, PriorityKey]:
        return self.rows_by_group[req.pending.group], req.pending.priority_key

    def enqueue(self, pending: PendingReq, *, lacks_grammar: bool = False) -> None:
        """→ WAITING, by priority. A request that lacks its grammar lets others pass until `release`."""
        priority = pending.sampling_params.priority
        pending.priority_key = priority_key_of(pending.stamps, priority, pending.queued_ns, next(self._numbers))
        self.requests[pending.uid] = pending
        self.share_of[pending.client] = pending.share
        self._num_of[pending.client] += 1
        self.num_delivered += pending.sampling_params.needs_token_delivery
        self.num_live += not pending.gives_way
        if lacks_grammar:
            self.compiling[pending.uid] = pending
        else:
            self.waiting.push(pending)

    def release(self, pending: PendingReq) -> None:
        """Moves a request whose grammar is compiled from `compiling` to the queue."""
        del self.compiling[pending.uid]
        self.waiting.push(pending)

    def runs(self, req: Req) -> bool:
        """True unless `req` has ended or been preempted."""
        return self.running.get(req.uid) is req

    @property
    def num_active(self) -> int:
        """Running requests that are not paused."""
        return len(self.running) - len(self.paused)

    def open_next(self, pending: PendingReq) -> Req:
        """Opens a waiting request with its cached pages. The caller must admit or close it next."""
        req = self._cache.open(pending)
        req.pending.state = State.PREFILL
        self._cache.find_prefix(req)
        return req

    def close_next(self, req: Req) -> None:
        """Undoes `open_next`."""
        self._cache.close(req)
        req.pending.state = State.WAITING

    def admit(self, req: Req) -> None:
        """WAITING → PREFILL, for the request that `open_next` returned, if nothing is lacking."""
        self._cache.admit(req)
        self.waiting.remove(req.pending)
        self.running[req.uid] = req
        self.rows_by_group[req.pending.group] += 1
        self.rows_by_client[req.pending.client] += 1
        self.num_live_rows += not req.pending.gives_way
        insort(self.prefilling, req, key=priority_key_of_row)

    def start_decoding(self, req: Req) -> None:
        """PREFILL → DECODE: its prompt is computed and its next token known."""
        self.prefilling.remove(req)
        req.pending.state = State.DECODE
        self.decode.append(req)
        self.num_yielding += req.pending.gives_way

    def pause(self) -> Req:
        """Pauses and returns the row in DECODE with the lowest priority among those that give way.

        No step may be in flight. The same holds for `resume`.
        """
        req = max((req for req in self.decode.reqs if req.pending.gives_way), key=priority_key_of_row)
        self.decode.remove(req)
        self.num_yielding -= 1
        insort(self.paused, req, key=priority_key_of_row)
        return req

    def resume(self) -> Req:
        """Resumes and returns the paused row with the highest priority."""
        req = self.paused.pop(0)
        self.decode.append(req)
        self.num_yielding += 1
        return req

    def preempt(self, req: Req, *, ends_turn: bool = False) -> None:
        """PREFILL or DECODE → WAITING, in its old place or, if its turn ends, behind those of other groups.

        Its full pages stay cached until they are evicted.
        """
        self._leave_row(req)
        self._cache.close(req)
        req.pending.state = State.WAITING
        self.waiting.push(req.pending, ends_turn=ends_turn)

    def finish(self, pending: PendingReq, is_reusable: bool = True) -> None:
        """Any → FINISHED: the pages of the request are freed or, with `is_reusable`, cached."""
        del self.requests[pending.uid]
        self.num_delivered -= pending.sampling_params.needs_token_delivery
        self.num_live -= not pending.gives_way
        req = self.running.get(pending.uid)
        if req is None:
            if self.compiling.pop(pending.uid, None) is None:
                self.waiting.remove(pending)
        else:
            self._leave_row(req)
            self._cache.close(req, is_reusable)
        self._cache.finish(pending.uid)
        pending.state = State.FINISHED
        self._num_of[pending.client] -= 1
        if not self._num_of[pending.client]:
            del self._num_of[pending.client], self.share_of[pending.client], self.rows_by_client[pending.client]

    def check(self) -> None:
        """Asserts that every request is in the collection of its state."""
        assert all(pending.state is State.WAITING for pending in self.waiting), "a running request waits"
        self.waiting.check()
        needs_delivery = [pending.sampling_params.needs_token_delivery for pending in self.requests.values()]
        assert self.num_delivered == sum(needs_delivery), "the count of requests whose tokens must be sent is wrong"
        assert self.prefilling == sorted(self.prefilling, key=priority_key_of_row), "rows in PREFILL are out of order"
        assert all(req.state is State.PREFILL for req in self.prefilling), "a row in PREFILL has another state"
        in_decode = (*self.decode.reqs, *self.paused)
        assert all(req.state is State.DECODE for req in in_decode), "a row in DECODE has another state"
        assert all(req.pending.gives_way for req in self.paused), "a row is paused that does not give way"
        yielding = [req for req in self.decode.reqs if req.pending.gives_way]
        assert self.num_yielding == len(yielding), "the count of rows that give way is wrong"
        live = [pending for pending in self.requests.values() if not pending.gives_way]
        assert self.num_live == len(live), "the count of live requests is wrong"
        live_rows = [pending for pending in live if pending.uid in self.running]
        assert self.num_live_rows == len(live_rows), "the count of live rows is wrong"
        groups = Counter(req.pending.group for req in self.running.values())
        assert self.rows_by_group == groups, "the count of rows by group is wrong"
        clients = Counter(req.pending.client for req in self.running.values())
        assert self.rows_by_client == clients, "the count of rows by client is wrong"
        assert self.share_of.keys() == {pending.client for pending in self.requests.values()}, "a client is unknown"
        placed = [pending.uid for pending in self.waiting] + list(self.compiling) + list(self.running)
        assert sorted(placed) == sorted(self.requests), "a request is in no place or in two"
        rows = [req.uid for req in (*self.prefilling, *in_decode)]
        assert sorted(rows) == sorted(self.running), "a running request has no row or two"
        self.decode.check()
        self._cache.check(self.running.values())

    def _leave_row(self, req: Req) -> None:
        del self.running[req.uid]
        self.rows_by_group[req.pending.group] -= 1
        self.rows_by_client[req.pending.client] -= 1
        if not self.rows_by_group[req.pending.group]:
            del self.rows_by_group[req.pending.group]
        self.num_live_rows -= not req.pending.gives_way
        self.num_left += 1
        if req.state is State.PREFILL:
            self.prefilling.remove(req)
        elif req.pending.gives_way and req in self.paused:
            self.paused.remove(req)
        else:
            self.decode.remove(req)
            self.num_yielding -= req.pending.gives_way


def priority_key_of_row(req: Req) -> PriorityKey:
    return req.pending.priority_key
