"""The policy: which rows run in the next step, who waits, and who gives way."""

from collections.abc import Collection, Sequence

import msgspec

from messages.timeline import DelayedRow, PreemptedRow
from scheduler_proc.deciding.batch_columns import Chunk
from scheduler_proc.deciding.block_allocator import BlockAllocator
from scheduler_proc.deciding.decode_rows import DecodeRows
from scheduler_proc.deciding.draft_planner import DraftPlanner
from scheduler_proc.deciding.in_flight import MustCommitError, StepInFlight
from scheduler_proc.deciding.plan_notes import AdmissionRate, PlanNotes
from scheduler_proc.deciding.requests import Req, State
from scheduler_proc.deciding.stages import Stages

QUEUE = 0
"""No request has this uid."""


class Budget(msgspec.Struct, frozen=True):
    """What one step may hold: rows, and tokens of all rows together."""

    max_num_seqs: int
    max_num_batched_tokens: int


PageKey = tuple[int, bytes, bytes]


class _Plan:
    """The prefill part of the step in the making: its chunks, and the pages that no second row need compute.

    `ends_in_flight`: how far the step in flight, if this one is planned behind it, computes its prompts, by uid.
    """

    def __init__(self, num_tokens_left: int, before: StepInFlight | None):
        self.num_tokens_left = num_tokens_left
        self.chunks: list[Chunk] = []
        self.pages_in_work: dict[PageKey, int] = {}
        """By whom each is computed."""
        self.before = [] if before is None else before.chunks_in_work()
        self.ends_in_flight = {chunk.req.uid: chunk.end for chunk in self.before}


class Policy:
    """Chooses the rows of each step and gives them their pages. The counters only grow."""

    def __init__(
        self, stages: Stages, cache: BlockAllocator, budget: Budget, draft_planner: DraftPlanner | None = None
    ):
        self._draft_planner = draft_planner
        self._stages = stages
        self._cache = cache
        self._no_rows = DecodeRows(cache.page_size)
        self.budget = budget
        self.notes = PlanNotes()
        """Of the latest plan."""
        self.admission_rate = AdmissionRate()
        self.is_closed = False
        """Nothing gets out of the queue any more."""
        self.starved: Collection[int] = ()
        """By fault injection: the uids that no step has once they decode; 0 stands for the queue."""
        self.num_admitted = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_hit_tokens = 0
        self.num_resumed_tokens = 0
        """Of requests that were sent again, after a replacement or a loss."""
        self.num_recomputed_tokens = 0
        """Those of them that were not in the cache."""

    def choose_rows(self, rows: DecodeRows, before: StepInFlight | None = None) -> tuple[DecodeRows, list[Chunk]]:
        """Returns the rows of the next step: those of `rows`, in DECODE, that feed one token each, and the others.

        The others are prefill chunks and rows in DECODE with draft tokens. All have pages.

        What the decode rows leave of the step's tokens goes to prompts in order of priority, and then to the queue in
        its order. Pages are taken as tokens need them; where there are none the running request of lowest priority
        gives way, so the first always goes on. With a step in flight nobody does: that raises `MustCommitError`.
        """
        stages, may_preempt = self._stages, before is None
        self.notes = PlanNotes()
        for req, num_tokens in rows.reqs_without_slot():
            self._make_room(req, num_tokens, may_preempt)
        plan = _Plan(self.budget.max_num_batched_tokens - len(rows), before)
        plan.pages_in_work.update((self._page_key(chunk.req), chunk.req.uid) for chunk in plan.before)
        for req in tuple(stages.prefilling):
            self._add_chunk(req, plan, may_preempt)
        if not (self.is_closed or QUEUE in self.starved):
            self._admit(plan, may_preempt)
        elif self.is_closed and stages.waiting:
            self.notes.waits_for = "drain"
        self.admission_rate.note_plan(len(stages.waiting), self.notes.planned_ns)
        rows.enter_pages()
        if self.starved:
            rows = rows.kept([req.uid not in self.starved for req in rows.reqs])
        if self._draft_planner is not None:
            drafted = self._draft_planner.plan(rows, plan.num_tokens_left)
            if drafted:
                plan.chunks += drafted
                plan.num_tokens_left -= sum([len(chunk.draft_ids) for chunk in drafted])
                rows = self._without(rows, drafted)
        self.notes.num_step_tokens = self.budget.max_num_batched_tokens - plan.num_tokens_left
        return rows, plan.chunks

    def _without(self, rows: DecodeRows, drafted: Sequence[Chunk]) -> DecodeRows:
        """Returns the rows that have no draft tokens; nobody changes them."""
        if len(drafted) == len(rows):
            return self._no_rows
        uids = {chunk.req.uid for chunk in drafted}
        return rows.kept([req.uid not in uids for req in rows.reqs])

    def has_room(self) -> bool:
        """Tells whether the first of the queue could have a row now, even if nothing of its prompt is cached."""
        stages, budget = self._stages, self.budget
        if self.is_closed or not stages.waiting or stages.prefilling:
            return False
        num_running = len(stages.running)
        num_pages = -(-(len(stages.waiting.first.token_ids) + 1) // self._cache.page_size)
        has_pages = num_pages + num_running <= self._cache.num_available
        return has_pages and num_running < min(budget.max_num_seqs, budget.max_num_batched_tokens)

    def _make_room(self, req: Req, num_tokens: int, may_preempt: bool) -> bool:
        """Gives `req` pages for `num_tokens` in all; returns False where it had to give way itself."""
        while req.state is not State.WAITING:
            if self._cache.grow(req, num_tokens):
                return True
            if not may_preempt:
                raise MustCommitError
            last = self._stages.last_in_priority()
            self._stages.preempt(last)
            self.notes.preempted.append(PreemptedRow(last.uid, last.pending.attempt, req.uid))
            self.num_preemptions += 1
        return False

    def _add_chunk(self, req: Req, plan: _Plan, may_preempt: bool) -> None:
        """Adds the next chunk of a prompt.

        Not so where an earlier row of this step, or of the one in flight, computes the same page: after the step it can
        be found (but not by a prompt of which anything is wanted). Nor while pages are loaded from a lower tier.
        """
        if req.state is State.WAITING:
            return
        if not plan.num_tokens_left:
            self._note_delay(req, 0)
            return
        start = plan.ends_in_flight.get(req.uid)
        if start is None:
            self._cache.find_prefix(req)
            by_uid = plan.pages_in_work.get(self._page_key(req))
            if by_uid is not None and not req.pending.lacks_prompt_result:
                self._note_delay(req, by_uid)
                return
            if self._cache.load(req):
                plan.pages_in_work[self._page_key(req)] = req.uid
                self._note_delay(req, req.uid)
                return
            start = req.num_computed_tokens
        end = min(start + plan.num_tokens_left, len(req.token_ids))
        if start < end and self._make_room(req, end, may_preempt):
            plan.chunks.append(Chunk(req, start, end, req.wanted_in_prefill(start, end)))
            plan.num_tokens_left -= end - start
            plan.pages_in_work[self._page_key(req)] = req.uid
            self._note_first_chunk(req)

    def _page_key(self, req: Req) -> PageKey:
        """Returns what is the same for requests that would compute the same next page, which they could share."""
        page = self._cache.next_page(req)
        return (id(req.node), req.pending.salt, page) if page else (id(req), b"", b"")

    def _admit(self, plan: _Plan, may_preempt: bool) -> None:
        """Lets requests out of the queue as long as their whole prompt fits beside what the running rows need.

        One page a running row is left to grow into: a row let in too early only has to give way again. One that gave
        way in this plan cannot come back in it: whoever needed its pages has taken some of them.
        """
        stages, cache, notes = self._stages, self._cache, self.notes
        num_promised = sum(cache.num_missing(req, _num_next_tokens(req)) for req in stages.prefilling)
        while stages.waiting and plan.num_tokens_left and len(stages.running) < self.budget.max_num_seqs:
            req = stages.open_next()
            num_needed = cache.num_missing(req, _num_next_tokens(req))
            if num_promised + num_needed + len(stages.running) > cache.num_available:
                stages.close_next(req)
                notes.waits_for, notes.num_needed_pages = "pages", num_needed
                notes.num_promised_pages = num_promised + len(stages.running)
                return
            stages.admit(req)
            self.num_admitted += 1
            self.admission_rate.note(notes.planned_ns)
            self._add_chunk(req, plan, may_preempt)
            num_promised += cache.num_missing(req, _num_next_tokens(req))
        if stages.waiting:
            notes.waits_for = "tokens" if len(stages.running) < self.budget.max_num_seqs else "rows"

    def _note_delay(self, req: Req, by_uid: int) -> None:
        self.notes.delayed.append(DelayedRow(req.uid, req.pending.attempt, by_uid))

    def _note_first_chunk(self, req: Req) -> None:
        pending = req.pending
        if pending.cached_tokens is None:
            pending.first_scheduled_ns = self.notes.planned_ns
            pending.cached_tokens = min(req.num_computed_tokens, pending.num_prompt_tokens)
            self.num_prompt_tokens += pending.num_prompt_tokens
            self.num_hit_tokens += pending.cached_tokens
            if pending.attempt:
                self.num_resumed_tokens += len(pending.token_ids)
                self.num_recomputed_tokens += len(pending.token_ids) - req.num_computed_tokens


def _num_next_tokens(req: Req) -> int:
    """Returns how many tokens it has when its prompt is computed: one more, if it may have that."""
    return min(len(req.token_ids) + 1, req.pending.max_len)
