"""The policy: which rows run in the next step, which requests wait, and which are preempted or paused."""

from collections.abc import Collection, Iterable, Sequence

from messages.ring.timeline import DelayedRow, PreemptedRow, WaitsFor
from scheduler_proc.deciding.chunk_times import ChunkTimes
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.in_flight import MustCommitError, StepInFlight
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.resource import Resource
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.plan_notes import AdmissionRate, PlanNotes
from scheduler_proc.deciding.requests import PendingReq, State
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.shares import Shares
from scheduler_proc.deciding.stages import Stages
from scheduler_proc.deciding.step_plan import Budget, StepPlan
from scheduler_proc.deciding.step_size import MIN_TOKENS, NUM_LARGE_STEPS, StepSize
from scheduler_proc.deciding.tasks.pooling import chunking_of
from scheduler_proc.deciding.yielding import Yielding

PART_BY_TURN = 8
"""Rows of other groups are preempted for a group with less than 1 in `PART_BY_TURN` of all rows."""

QUEUE = 0
"""No request has this uid."""


class Policy:
    """Chooses the rows of each step and gives them their pages. The counters only grow.

    Besides rows, tokens and pages, requests may need `resources`.
    """

    def __init__(
        self,
        stages: Stages,
        cache: BlockAllocator,
        budget: Budget,
        draft_planner: DraftPlanner | None = None,
        resources: Sequence[Resource] = (),
    ):
        self._stages, self._cache = stages, cache
        self._draft_planner, self._resources = draft_planner, resources
        self._no_rows = DecodeRows(cache.page_size)
        self.budget = budget
        self._yielding = Yielding(stages, budget)
        self.shares = Shares(stages, budget, cache.num_pages)
        self.step_size, self.chunk_times = StepSize(budget.max_num_batched_tokens), ChunkTimes()
        self.notes = PlanNotes()
        """Facts about the latest plan."""
        self.admission_rate = AdmissionRate()
        self.starved: Collection[int] = ()
        """Fault injection: the uids that no step has once they decode; 0 means the queue."""
        self.num_admitted = self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_hit_tokens = 0
        self.num_resumed_tokens = 0
        """Tokens of requests that were sent again, after a replacement or a loss."""
        self.num_recomputed_tokens = 0
        """The part of `num_resumed_tokens` that was not in the cache."""

    def choose_rows(self, rows: DecodeRows, in_flight: Sequence[StepInFlight]) -> tuple[DecodeRows, list[Chunk]]:
        """Returns the rows of the next step: those of `rows`, in DECODE, that feed one token each, and the others.

        The others are prefill chunks and rows in DECODE with draft tokens. All have pages.

        The tokens that decode rows leave in the step go to prompts in order of priority, and then to the queue in its
        order; clients take turns (`shares.py`). Pages are allocated as tokens need them. If there are none, the running
        request of lowest priority is preempted, so the first one always continues. If steps are in flight,
        `MustCommitError` is raised instead.

        While other requests have rows, rows of the lowest priority are paused, except for a few tokens now and then.
        """
        self.notes = PlanNotes()
        stages, had_live_rows = self._stages, self._stages.num_live_rows > 0
        chosen, chunks = self._choose(rows, in_flight)
        may_repeat = (had_live_rows and not stages.num_live_rows) or not (in_flight or rows is stages.decode)
        if may_repeat and not (chosen.reqs or chunks):  # the last other request, or a whole group, lost its row
            chosen, chunks = self._choose(rows if in_flight else stages.decode, in_flight)
        return chosen, chunks

    def _choose(self, rows: DecodeRows, in_flight: Sequence[StepInFlight]) -> tuple[DecodeRows, list[Chunk]]:
        has_turn = self._yielding.max_num_tokens > 0
        most, num_yielding = self.budget.max_num_batched_tokens, self._yielding.share(in_flight, self.notes)
        plan = StepPlan(rows, most, num_yielding, in_flight, self.chunk_times)
        for req, num_tokens in rows.reqs_without_slot():
            self._make_room(req, num_tokens, plan)
        plan.num_tokens_left -= len(rows)
        if self.step_size.num_tokens < most and self._stages.has_large_group(NUM_LARGE_STEPS * most):
            num_tokens = max(MIN_TOKENS, self.step_size.num_tokens - len(rows))
            plan.num_left_over = max(0, plan.num_tokens_left - num_tokens)
            plan.num_tokens_left -= plan.num_left_over
        plan.pages_in_work.update((self._cache.next_page_key(chunk.req), chunk.req.uid) for chunk in plan.in_flight)
        self._plan_prompts(plan)
        rows.enter_pages()
        if self.starved:
            rows = rows.kept([req.uid not in self.starved for req in rows.reqs])
        plan.num_tokens_left += plan.num_left_over
        self._yielding.num_without = 0 if has_turn else self._yielding.num_without + 1
        self.notes.num_step_tokens = self.budget.max_num_batched_tokens - plan.num_tokens_left
        if self._draft_planner is not None:
            rows = self.add_drafts(rows, plan.chunks, self._draft_planner.plan(rows, plan.num_tokens_left))
        return rows, plan.chunks

    def _plan_prompts(self, plan: StepPlan) -> None:
        """Gives the tokens to prompts, and admits requests, unless the queue is closed, in turns of their clients."""
        stages, notes = self._stages, self.notes
        if self.is_closed or QUEUE in self.starved:
            plan.may_admit, notes.waits_for = False, "drain" if self.is_closed and stages.waiting else None
        for _ in self.shares.turns(plan, notes.planned_ns):
            has_tokens = plan.turn is None or plan.num_tokens_left > 0
            if has_tokens:
                self._let_pass(plan)
            for req in self._prompts(plan):
                self._add_chunk(req, plan)
            if plan.may_admit and (has_tokens or (self._is_full and self._may_take_row(plan))):
                self._admit_fitting(plan)
        if self.shares.order:
            self._record_wait(plan)
        self.admission_rate.record_plan(len(stages.waiting), notes.planned_ns)

    def _may_take_row(self, plan: StepPlan) -> bool:
        return plan.turn is not None and self.shares.may_take_row(plan.turn[0])

    def _prompts(self, plan: StepPlan) -> list[Req]:
        """Returns the prompts of the rows in PREFILL whose turn it is."""
        if plan.turn is None:
            return self._stages.prefilling[:]
        return [req for req in self._stages.prefilling if req.pending.flow == plan.turn]

    def _let_pass(self, plan: StepPlan) -> None:
        """Gives half of the step to short prompts of other groups, if the first prompt would take all of it.

        They have at most half of the tokens that the first still lacks, so no prompt waits long for a longer one.
        """
        prompts = self._prompts(plan)
        first = next(iter(prompts), None)
        if first is None or first.pending.gives_way or plan.count_missing(first) <= plan.num_tokens_left:
            return
        num_kept, start = -(-plan.num_tokens_left // 2), len(first.token_ids) - plan.count_missing(first)
        if not start < plan.find_end(first, start, num_kept, self._resources) <= start + num_kept:
            return
        plan.num_tokens_left, plan.passed = plan.num_tokens_left - num_kept, first
        for req in sorted(prompts, key=plan.count_missing):
            if plan.may_pass(req.pending, plan.count_missing(req)):
                self._add_chunk(req, plan)
        if plan.may_admit:
            self._admit_fitting(plan)
        plan.num_tokens_left += num_kept
        plan.passed = None
        plan.skipped.clear()

    def add_drafts(self, rows: DecodeRows, chunks: list[Chunk], drafted: Sequence[Chunk]) -> DecodeRows:
        """Adds rows with draft tokens to `chunks`; returns the other `rows`, which must not be changed."""
        if not drafted:
            return rows
        chunks += drafted
        self.notes.num_step_tokens += sum([len(chunk.draft_ids) for chunk in drafted])
        if len(drafted) == len(rows):
            return self._no_rows
        uids = {chunk.req.uid for chunk in drafted}
        return rows.kept([req.uid not in uids for req in rows.reqs])

    def _next_waiting(self, num_yielding_left: int, plan: StepPlan | None = None) -> PendingReq | None:
        """Returns the first request of the queue that may get a row, if there is room for it."""
        queue, turn = self._stages.waiting, None if plan is None else plan.turn
        waiting: Iterable[PendingReq] = queue.line if turn is None else queue.lines.get(turn, ())
        if waiting and plan is not None and self._is_full and not self._may_take_row(plan):
            rows, most = self._stages.rows_by_group, self._stages.max_rows("" if turn is None else turn[0])
            waiting = (
                (each for each in waiting if rows[each.group] + 1 < most and not each.gives_way) if most > 1 else ()
            )
        if plan is not None and (plan.skipped or plan.passed is not None):
            waiting = (pending for pending in waiting if plan.may_pass(pending, len(pending.token_ids)))
        if num_yielding_left <= 0:
            waiting = (pending for pending in waiting if not pending.gives_way)
        for resource in self._resources:
            waiting = resource.admissible(waiting)
        return next(iter(waiting), None)

    @property
    def is_closed(self) -> bool:
        """True if no more requests are admitted from the queue."""
        return self._yielding.is_closed

    def close(self) -> None:
        self._yielding.is_closed = True

    @property
    def has_prompts(self) -> bool:
        """True if the next step could have prefill chunks, as far as is known now."""
        num_yielding_left = self._yielding.num_left
        in_prefill = any(num_yielding_left > 0 or not req.pending.gives_way for req in self._stages.prefilling)
        return in_prefill or self._next_waiting(num_yielding_left) is not None

    def has_room(self) -> bool:
        """True if the next request of the queue could get a row now, even if none of its prompt is cached."""
        stages = self._stages
        pending = self._next_waiting(self._yielding.num_left)
        if self.is_closed or pending is None or stages.prefilling or self._is_full:
            return False
        req = self._cache.open(pending)
        _, lacking = self._find_lacking(req, self._cache.num_missing(req, _num_next_tokens(req)))
        self._cache.close(req)
        return lacking <= 0

    def _make_room(self, req: Req, num_tokens: int, plan: StepPlan) -> bool:
        """Gives `req` pages for `num_tokens` in all; returns False if it was preempted itself."""
        while req.state is not State.WAITING:
            if self._cache.grow(req, num_tokens):
                return True
            self._preempt(self._stages.last_in_priority(self.shares.rows_for_pages()), req, plan)
        return False

    def _preempt(self, last: Req, req: Req | PendingReq, plan: StepPlan, *, ends_turn: bool = False) -> None:
        """Preempts `last` for `req`. Raises `MustCommitError` if a step is in flight."""
        if not plan.may_preempt:
            raise MustCommitError
        self._stages.preempt(last, ends_turn=ends_turn)
        plan.forget(last)
        self.notes.preempted.append(PreemptedRow(last.uid, last.pending.attempt, req.uid))
        self.num_preemptions += 1

    def _find_yielding(self, plan: StepPlan, num_pages: int) -> list[Req]:
        """Returns the rows to preempt for a request of higher priority, in order of priority.

        Empty if all their pages together are too few.
        """
        rows = [req for req in self._stages.running.values() if req.pending.gives_way and req.uid not in plan.planned]
        has_enough = sum([len(req.pages) for req in rows]) >= num_pages
        return sorted(rows, key=lambda req: req.pending.priority_key) if has_enough else []

    def _add_chunk(self, req: Req, plan: StepPlan) -> None:
        """Adds the next chunk of a prompt, unless it is delayed or needs the result of its chunks in flight."""
        if req.state is State.WAITING or req.uid in plan.planned:
            return
        plan.planned.add(req.uid)
        num_tokens_left, chunking = plan.num_tokens_left, chunking_of(req.pending.sampling_params)
        if req.pending.gives_way:
            num_tokens_left = min(num_tokens_left, plan.num_yielding_left)
        start = plan.ends_in_flight.get(req.uid)
        if num_tokens_left <= 0 or not plan.fits(req.pending) or (start is not None and chunking == "in turn"):
            self._record_delay(req, 0)
            return
        if start is None:
            self._cache.find_prefix(req)
            by_uid = self._find_delay(req, plan)
            if by_uid is not None:
                self._record_delay(req, by_uid)
                return
            start = req.num_computed_tokens
        end = plan.find_end(req, start, num_tokens_left, self._resources)
        if start >= end:
            self._record_delay(req, 0)
        elif self._make_room(req, end, plan):
            plan.chunks.append(Chunk(req, start, end, req.outputs_in_prefill(start, end)))
            plan.num_tokens_left -= end - start
            plan.num_yielding_left -= (end - start) * req.pending.gives_way
            plan.pages_in_work[self._cache.next_page_key(req)] = req.uid
            self._record_first_chunk(req)

    def _find_delay(self, req: Req, plan: StepPlan) -> int | None:
        """Returns the request for which a prompt must wait before its next chunk, which may be itself.

        It waits if an earlier row of this step, or of one in flight, computes the same page, which it can use
        afterwards; or if it, or another one, gets something for it from a resource.
        """
        key = self._cache.next_page_key(req)
        by_uid = plan.pages_in_work.get(key)
        if by_uid is not None and req.num_shared_pages < req.pending.num_reusable_tokens // self._cache.page_size:
            return by_uid
        delays = (resource.find_delay(req, plan.chunks_in_work(), self._cache) for resource in self._resources)
        by_uid = next((uid for uid in delays if uid is not None), None)
        if by_uid == req.uid:
            plan.pages_in_work[key] = req.uid
        return by_uid

    def _admit_fitting(self, plan: StepPlan) -> None:
        """Admits requests while their whole prompt fits in the pages that the running rows do not need.

        One page per running row is reserved for growth, since a row admitted too early would be preempted again. A row
        preempted in this plan cannot return in it, as another request uses some of its pages. A request that does not
        give way gets the pages of those that do; one whose group has few rows gets a row and pages of the largest one.
        """
        stages, cache, notes = self._stages, self._cache, self.notes
        if plan.turn is None:
            notes.waits_for = None
        elif plan.turn not in stages.waiting.lines or (not self._is_full and self.shares.leaves_rows(plan.turn)):
            return
        num_promised = self._num_promised()
        while plan.num_tokens_left > 0 or self._is_full:
            pending = self._next_waiting(plan.num_yielding_left, plan)
            if pending is None or not plan.fits(pending):
                break
            if self._is_full and not self._preempt_for_turn(pending, 0, plan):
                plan.skipped.add(pending.group)
                continue
            req = stages.open_next(pending)
            num_needed = cache.num_missing(req, _num_next_tokens(req))
            scarce, lacking = self._find_lacking(req, num_promised + num_needed)
            if lacking > 0:
                stages.close_next(req)
                if self._preempt_for(pending, lacking, plan):
                    num_promised = self._num_promised()
                    continue
                notes.waits_for, notes.num_needed_pages = notes.waits_for or scarce, num_needed
                notes.num_promised_pages = num_promised + stages.num_active
                if not stages.rows_by_group[pending.group]:
                    plan.is_blocked |= not stages.rows_by_client[pending.client]
                    return
                plan.skipped.add(pending.group)  # its rows continue meanwhile
                continue
            stages.admit(req)
            self.num_admitted += 1
            self.admission_rate.record(notes.planned_ns)
            self._add_chunk(req, plan)
            num_promised += cache.num_missing(req, _num_next_tokens(req))
            if plan.turn is not None and self.shares.leaves_rows(plan.turn):
                break
        if plan.turn is None:
            self._record_wait(plan)

    def _record_wait(self, plan: StepPlan) -> None:
        """Records what the first request of the queue waits for, if it is not known yet."""
        if not self._stages.waiting:
            self.notes.waits_for = None
        elif self.notes.waits_for is None:
            lacking = self.find_wait(self._stages.waiting.first) or "priority"
            self.notes.waits_for = "rows" if self._is_full else lacking if plan.num_tokens_left > 0 else "tokens"

    def find_wait(self, pending: PendingReq) -> WaitsFor | None:
        """Returns which resource a waiting request lacks, if any."""
        reasons: Iterable[WaitsFor | None] = (resource.find_wait(pending) for resource in self._resources)
        return next(filter(None, reasons), None)

    @property
    def _is_full(self) -> bool:
        return self._stages.num_active >= min(self.budget.max_num_seqs, self.budget.max_num_batched_tokens)

    def _find_lacking(self, req: Req, num_pages: int) -> tuple[WaitsFor, int]:
        """Returns what an opened request lacks, and how much of it, if anything; `num_pages` are needed in all."""
        stages, max_num_tokens = self._stages, self.budget.max_num_batched_tokens
        lacking = num_pages + stages.num_active - self._cache.num_available
        if lacking > 0:
            return "pages", lacking
        for resource in self._resources:
            lacking = resource.num_lacking(req, stages.prefilling, stages.num_active, max_num_tokens)
            if lacking > 0:
                return resource.name, lacking
        return "pages", 0

    def _preempt_for(self, pending: PendingReq, lacking: int, plan: StepPlan) -> bool:
        """Preempts a row for a waiting request that lacks something; returns False if none leaves for it."""
        yielding = [] if pending.gives_way else self._find_yielding(plan, lacking)
        if not yielding:
            return self._preempt_for_turn(pending, lacking, plan)
        self._preempt(yielding[-1], pending, plan)
        return True

    def _preempt_for_turn(self, pending: PendingReq, lacking: int, plan: StepPlan) -> bool:
        """Preempts a row for a request of a client with little of its part, or of a group with few rows.

        It is a row of the client most above its part, or of the client's largest group, if its rows are enough.
        """
        num_pages = len(pending.token_ids) // self._cache.page_size + 1 if lacking else 0
        leaving = () if plan.turn is None else self.shares.rows_to_leave(pending, num_pages)
        if not leaving and self._stages.rows_by_group[pending.group] < max(1, self.budget.max_num_seqs // PART_BY_TURN):
            leaving = self._stages.rows_beyond_turn(pending)
        rows = [req for req in leaving if req.uid not in plan.planned]
        if not rows or sum([len(req.pages) for req in rows]) < lacking:
            return False
        num_rows = len(plan.rows)
        self._preempt(rows[-1], pending, plan, ends_turn=True)
        plan.num_tokens_left += num_rows - len(plan.rows)
        return True

    def _num_promised(self) -> int:
        """Returns the number of pages that the running prefills still need."""
        return sum(self._cache.num_missing(req, _num_next_tokens(req)) for req in self._stages.prefilling)

    def _record_delay(self, req: Req, by_uid: int) -> None:
        self.notes.delayed.append(DelayedRow(req.uid, req.pending.attempt, by_uid))

    def _record_first_chunk(self, req: Req) -> None:
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
