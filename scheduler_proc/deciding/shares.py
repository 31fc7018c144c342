"""How clients share steps: deficit round robin between their flows, and parts of rows and pages, weighted by shares.

A flow is the requests of one client with one priority. In each step, flows of a better priority come first; of equal
ones, the one that has had the fewest prompt tokens for its share, so that its deficit is the largest. It gets its part
of the tokens left, a quarter of the step at least, and what later flows cannot use. A flow without prompts saves
nothing up. One without tokens for `AGING_S` counts as one of the next better priority, as in `waiting_queue.py`.

A client with less than half of its part of the rows or pages gets those of the client that is most above its part. That
client cannot take them back: it would have to be below half of its own.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import Flow, PendingReq
from scheduler_proc.deciding.stages import Stages, priority_key_of_row
from scheduler_proc.deciding.step_plan import Budget, StepPlan
from scheduler_proc.deciding.waiting_queue import AGING_S, MAX_LEAD_S

MAX_FLOWS_IN_STEP = 4
"""If more flows have long prompts, each step has some of this number only: prompts then end one after another."""

MAX_REMEMBERED = 4_096
"""Clients without requests whose use of earlier steps still counts."""


class Shares:
    """Gives each flow its turn in a step. While there is one client, it does nothing."""

    def __init__(self, stages: Stages, budget: Budget, num_pages: int):
        self._stages = stages
        self._num_rows = min(budget.max_num_seqs, budget.max_num_batched_tokens)
        self._num_pages = num_pages
        self._served: dict[Flow, float] = {}
        """The prompt tokens that each flow has had, for a share of 1."""
        self._floor = 0.0
        """What the flow with the fewest has had: new ones begin there."""
        self._since_ns: dict[Flow, int] = {}
        """When each flow with prompts last had tokens, or began to have prompts."""
        self._num_needed = -1, 0.0
        """The rows that clients lack of their parts, and the number of active rows when they were counted."""
        self.order: Sequence[Flow] = ()
        """The flows of the latest plan in the order of their turns; none if there is one client."""

    def turns(self, plan: StepPlan, now_ns: int) -> Iterator[None]:
        """Yields for the turn of each flow, with its tokens in `plan`; for one client once."""
        if len(self._stages.share_of) <= 1:
            self.order, self._served, self._since_ns = (), {}, {}
            yield
            return
        self._num_needed = -1, 0.0
        demands = self._find_demands(plan)
        self._begin(demands, now_ns)
        levels = {flow: self._level(flow, now_ns) for flow in demands}
        self.order = sorted(demands, key=lambda flow: (levels[flow], self._served[flow], demands[flow]))
        least = plan.num_tokens_left // MAX_FLOWS_IN_STEP
        for _, group in groupby(self.order, key=levels.__getitem__):
            flows = list(group)
            weight = sum([self._stages.share_of[client] for client, _ in flows])
            num_later = sum([demands[flow] for flow in flows])
            for flow in flows:
                before, share = plan.num_tokens_left, self._stages.share_of[flow[0]]
                num_later -= demands[flow]
                part = max(before * share // weight, least, before - num_later)
                weight -= share
                num_kept = max(0, before - part)
                plan.turn, plan.num_tokens_left = flow, before - num_kept
                plan.num_left_over += num_kept
                yield
                plan.num_tokens_left += num_kept
                plan.num_left_over -= num_kept
                if plan.num_tokens_left < before:
                    self._served[flow] += (before - plan.num_tokens_left) / share
                    self._since_ns[flow] = now_ns
            plan.may_admit = plan.may_admit and not plan.is_blocked
        plan.turn = None

    def _find_demands(self, plan: StepPlan) -> dict[Flow, int]:
        """Returns the number of prompt tokens that each flow could use in this step."""
        demands = self._stages.waiting.num_tokens.copy()
        for req in self._stages.prefilling:
            demands[req.pending.flow] += plan.count_missing(req)
        return {flow: min(num_tokens, plan.num_tokens_left) for flow, num_tokens in demands.items()}

    def _begin(self, demands: Collection[Flow], now_ns: int) -> None:
        """Puts new flows on a level with the one that has had least, and forgets those that are no longer above it."""
        served = self._served
        self._floor = max(self._floor, min([served[flow] for flow in demands if flow in served], default=0.0))
        idle = [flow for flow in served if flow not in demands]
        for flow in idle:
            self._since_ns.pop(flow, None)
            if served[flow] <= self._floor or len(served) > MAX_REMEMBERED:
                del served[flow]
        for flow in demands:
            served[flow] = max(served.get(flow, 0.0), self._floor)
            self._since_ns.setdefault(flow, now_ns)

    def _level(self, flow: Flow, now_ns: int) -> int:
        most = MAX_LEAD_S // AGING_S
        return max(-most, min(flow[1], most)) - (now_ns - self._since_ns[flow]) // (AGING_S * 1_000_000_000)

    def leaves_rows(self, flow: Flow) -> bool:
        """True if a flow's client has its part of the rows, and others that have less need all that are left."""
        stages = self._stages
        if stages.rows_by_client[flow[0]] < self._part(self._num_rows) * stages.share_of[flow[0]]:
            return False
        if self._num_needed[0] != stages.num_active:
            self._num_needed = stages.num_active, self._count_needed_rows()
        num_needed = self._num_needed[1]
        return 0 < num_needed >= self._num_rows - stages.num_active

    def _count_needed_rows(self) -> float:
        """Returns the number of rows that clients with waiting requests lack of their parts."""
        stages, part, num_needed = self._stages, self._part(self._num_rows), 0.0
        for (client, _), num_waiting in stages.waiting.num_requests.items():
            num_lacking = part * stages.share_of[client] - stages.rows_by_client[client]
            if num_lacking > 0:
                num_needed += min(num_waiting, num_lacking)
        return num_needed

    def may_take_row(self, client: str) -> bool:
        """True if a row of another client could leave for a request of this one."""
        return self._find_largest(client, self._stages.rows_by_client, self._num_rows, 1) is not None

    def rows_to_leave(self, pending: PendingReq, num_pages: int) -> Sequence[Req]:
        """Returns the rows that may leave for a waiting request, of one client, the last one last; that keeps one.

        `num_pages` is what the request needs; 0 if it lacks only a row.
        """
        stages, priority = self._stages, pending.sampling_params.priority
        running = stages.running.values()
        if num_pages:
            client = self._find_largest(pending.client, _pages_by_client(running), self._num_pages, num_pages)
        else:
            client = self._find_largest(pending.client, stages.rows_by_client, self._num_rows, 1)
        rows = [
            req for req in running if req.pending.client == client and req.pending.sampling_params.priority >= priority
        ]
        return sorted(rows, key=priority_key_of_row)[1:]

    def _part(self, total: int) -> float:
        """Returns the part for a share of 1."""
        return total / sum(self._stages.share_of.values())

    def _find_largest(self, client: str, usage: Counter[str], total: int, num_needed: int) -> str | None:
        """Returns the client most above its part if `client` may take from it, else `None`."""
        share_of, part = self._stages.share_of, self._part(total)
        own = part * share_of[client]
        if usage[client] + num_needed > (own / 2 if usage[client] else max(1.0, own)):
            return None
        largest = max(share_of, key=lambda each: usage[each] / share_of[each])
        return largest if largest != client and usage[largest] > part * share_of[largest] else None

    def rows_for_pages(self) -> Collection[Req]:
        """Returns the rows of which the last one in priority leaves if a running request lacks pages.

        They are those of the client with the most pages for its share, among rows of the lowest priority; the first row
        of all never leaves for others.
        """
        stages = self._stages
        if len(stages.share_of) <= 1:
            return stages.running.values()
        rows = sorted(stages.running.values(), key=priority_key_of_row)
        least = rows[-1].pending.sampling_params.priority
        others = [req for req in rows[1:] if req.pending.sampling_params.priority >= least] or rows
        pages = _pages_by_client(others)
        largest = max(pages, key=lambda client: pages[client] / stages.share_of[client])
        return [req for req in others if req.pending.client == largest]


def _pages_by_client(rows: Collection[Req]) -> Counter[str]:
    pages = Counter[str]()
    for req in rows:
        pages[req.pending.client] += len(req.pages)
    return pages
