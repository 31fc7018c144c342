"""The deciding half in one object: messages in, steps out, results in, replies out."""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.cache import ExplainCache, ListCache
from messages.ring.encodings import EncoderStarted, ImageEncoded
from messages.ring.replies import CacheFlushed, DetokenizeMsg, FinishedRow, ToDetokenizer
from messages.ring.requests import AbortMsg, DropBefore, FlushCache, FramesLost, StopSeen, ToScheduler, UserMsg
from messages.ring.steps import Batch, ForwardOutput
from messages.ring.uids import GoneRequests
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.draft_state import Drafts, DraftSteps
from scheduler_proc.deciding.in_flight import MustCommitError, StepInFlight
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.resource import Resource
from scheduler_proc.deciding.pages.running_request import Chunk
from scheduler_proc.deciding.policy import Policy
from scheduler_proc.deciding.refusals import check_possible
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.results import Results
from scheduler_proc.deciding.row_groups import RowGroups
from scheduler_proc.deciding.rows.batch_columns import BatchBuilder
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.rows.delivery import open_stream, refused_row
from scheduler_proc.deciding.sampling.endings import ABORTED, COMPLETE, STOP_STRING, Ending
from scheduler_proc.deciding.sampling.grammars import RequestGrammar
from scheduler_proc.deciding.schedule_reports import ScheduleReports
from scheduler_proc.deciding.stages import Stages
from scheduler_proc.deciding.step_plan import Budget

NO_FAILURES: Mapping[int, ErrorInfo] = {}


class GrammarSource(Protocol):
    """Compiles grammars outside the main loop, as `scheduler_proc/grammar_builder.py` does."""

    def find(self, pending: PendingReq) -> RequestGrammar | None:
        """Returns the grammar of a request if it is available at once."""
        ...

    def start(self, pending: PendingReq) -> None:
        """Starts to compile it."""

    def pop_built(self) -> Sequence[tuple[PendingReq, RequestGrammar | ErrorInfo]]:
        """Returns the grammars that have been compiled since the last call, or the errors."""
        ...


@dataclass(eq=False)
class Scheduler:
    """Receives messages, plans steps, commits their results, and collects replies for the detokenizer.

    The caller repeats: `receive` (any number of messages), `schedule`, and `commit` with the result if that returned a
    step. It may call `schedule` once more before that `commit`, with the first step in flight, and for a pipeline until
    `budget.num_stages` steps are; commits are in the order of the steps. If `schedule` leaves a `proposal` of the draft
    model, the caller runs it and calls `add_drafts`.
    `cache` must have room for a request of `limits.max_model_len` tokens, so that the first in priority can always
    continue. With `plans_decodes_alone` only steps of the same rows in DECODE are planned behind a step in flight.
    """

    cache: BlockAllocator
    _limits: Limits
    _budget: Budget
    _draft_planner: DraftPlanner | None = None
    _grammars: GrammarSource | None = None
    plans_decodes_alone: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        cache, limits, budget = self.cache, self._limits, self._budget
        assert cache.num_pages * cache.page_size >= limits.max_model_len
        self._stages = Stages(cache)
        self._resources = [observer for observer in cache.observers if isinstance(observer, Resource)]
        self._policy = Policy(self._stages, cache, budget, self._draft_planner, self._resources)
        self._reports = ScheduleReports(self._stages, cache, self._policy)
        self._results = Results(self._stages, cache, self._resources)
        self._builder = BatchBuilder(cache.num_pages, cache.page_size, limits.max_model_len)
        self.num_stages = budget.num_stages
        self._groups = RowGroups(budget.num_stages)
        self._is_pipeline, self._max_in_flight = budget.num_stages > 1, max(2, budget.num_stages)
        self._in_flight: deque[StepInFlight] = deque()
        self._has_forgotten = False
        """Steps have been forgotten: the next one has the rows in DECODE of all groups."""
        self._plan: tuple[DecodeRows, list[Chunk]] | None = None
        """The rows of a step that waits for the draft model."""
        self._replies: list[ToDetokenizer] = []
        self._num_steps = 0
        self._num_steps_ahead = 0
        self._must_report_drained = False
        self._gone = GoneRequests()

    @property
    def is_idle(self) -> bool:
        return not self._stages.requests

    def receive(self, message: ToScheduler) -> None:
        """Carries out a message. One about an older attempt than the known one is dropped."""
        if isinstance(message, FramesLost | ImageEncoded | EncoderStarted):
            for resource in self._resources:
                resource.receive(message)
            if isinstance(message, FramesLost):
                self._replies.append(message)  # the detokenizer forwards it to the frontend
            return
        known = self._stages.requests.get(message.uid)
        match message:
            case UserMsg():
                # The request of a dead frontend may arrive after another frontend's `DropBefore`.
                if not self._gone.has(message.uid) and (known is None or known.attempt < message.attempt):
                    self._take_request(message, known)
            case AbortMsg():
                self._end_known(known, message.attempt, ABORTED[message.reason])
            case StopSeen():
                self._end_known(known, message.attempt, STOP_STRING)
            case DropBefore():
                self._drop(message)
            case FlushCache():
                self._flush(message)
            case ExplainCache() | ListCache():
                self._replies.append(self.cache.answer(message))

    def schedule(self) -> Batch | None:
        """Returns the next step, or `None` if no request can have a row.

        `None` may also mean that the step in flight has to be committed first, or that the `proposal` has to run. The
        replies include the plan's report for timelines, which should be sent before a long step.
        """
        if self._grammars is not None:
            self._release_compiled(self._grammars)
        for resource in self._resources:
            for pending, ending in resource.collect(self._stages.waiting, self.cache):
                self._reply_end(self._results.finish(pending, ending))
        if self.is_idle or (self._policy.is_closed and not self._stages.running):
            return None
        in_flight = self._in_flight
        assert len(in_flight) < self._max_in_flight, "too many steps are in flight"
        if in_flight and not self.may_plan_behind:
            return None
        try:
            rows = in_flight[0].rows_behind() if in_flight and not self._is_pipeline else self._stages.decode
            if self._is_pipeline and not self._has_forgotten:
                rows = self._groups.next_group(rows, in_flight, self._policy.starved)
                if in_flight and not rows.reqs and not self._policy.has_prompts:
                    return None
            rows, chunks = self._policy.choose_rows(rows, in_flight)
        except MustCommitError:
            return None
        if not rows.reqs and not chunks:
            is_held = self._stages.compiling or self._policy.starved or self.is_loading
            assert in_flight or is_held, "there are requests and none can run"
            if not in_flight:
                self._replies += self._reports.make(self._num_steps, [])
            return None
        if self.proposal is not None:
            self._plan = rows, chunks
            return None
        return self._begin_step(rows, chunks)

    @property
    def proposal(self) -> DraftSteps | None:
        """The steps of the draft model that must run before the plan is complete; `add_drafts` then completes it."""
        return None if self._draft_planner is None else self._draft_planner.proposal

    def add_drafts(self, drafts: Drafts) -> Batch:
        """Returns the step whose plan waited for the result of `proposal`."""
        assert self._draft_planner is not None
        assert self._plan is not None, "no plan waits for the draft model"
        (rows, chunks), self._plan = self._plan, None
        rows = self._policy.add_drafts(rows, chunks, self._draft_planner.end_proposal(rows, drafts))
        return self._begin_step(rows, chunks)

    def _begin_step(self, rows: DecodeRows, chunks: list[Chunk]) -> Batch:
        self._num_steps += 1
        self._num_steps_ahead += bool(self._in_flight)
        self._in_flight.append(StepInFlight(rows.reqs, chunks, self._stages))
        self._has_forgotten = False
        if self._is_pipeline:  # `rows` may be a group
            self._stages.decode.enter_pages()
        self._replies += self._reports.make(self._num_steps, chunks)
        columns: dict[str, bytes] = {}
        for resource in self._resources:
            columns.update(resource.columns(rows, chunks))
        return self._builder.build(self._num_steps, rows, chunks, columns)

    @property
    def is_loading(self) -> bool:
        """True if a request waits for something that arrives without a step."""
        return any(resource.is_loading for resource in self._resources)

    @property
    def may_plan_behind(self) -> bool:
        """True if a step may be planned behind those in flight, as far as is known now."""
        planner = self._draft_planner
        if planner is not None and not (self._is_pipeline or (self.plans_decodes_alone and planner.is_idle)):
            return False  # drafts need all tokens, and how many the step in flight adds is unknown
        if not all(resource.may_plan_behind() for resource in self._resources):
            return False
        stages = self._stages
        return not self.plans_decodes_alone or not (
            self._policy.has_prompts or stages.decode.sampling.num_that_change_logits
        )

    def starve(self, uids: Collection[int]) -> None:
        """Leaves the requests that are in `uids` at the time out of all steps (fault injection); 0 means the queue."""
        self._policy.starved = uids

    def close_queue(self) -> None:
        """Admits no more requests from the queue. Running rows continue; then the process will be replaced."""
        self._policy.close()
        self._must_report_drained = True

    @property
    def num_waiting(self) -> int:
        return len(self._stages.waiting) + len(self._stages.compiling)

    def pop_drained(self) -> bool:
        """Returns True once, when the last row has ended after `close_queue`."""
        is_drained = self._must_report_drained and not self._stages.running
        self._must_report_drained = self._must_report_drained and not is_drained
        return is_drained

    def commit(self, output: ForwardOutput, failures: Mapping[int, ErrorInfo] = NO_FAILURES) -> None:
        """Applies the result of the first step in flight to its rows, except those that have ended meanwhile.

        `failures` has the errors of rows that could not be computed, by index; their next tokens are -1.
        """
        step = self._in_flight.popleft()
        is_behind = self._in_flight and not self._is_pipeline
        assert not (is_behind and output.num_tokens), "a step was planned behind one whose rows got other tokens"
        self._replies += self._results.commit(step, output, failures)
        if is_behind:  # its pages were allocated before this step's were full
            self._stages.decode.enter_pages()
            for req, _ in self._stages.decode.reqs_without_slot():
                self.cache.record_filled(req)

    def record_time(self, batch: Batch, seconds: float, cost_s: float) -> None:
        """Records the time of a step and its plan.

        A step without prompt chunks counts for draft lengths with `cost_s`, measured by the clock of `DraftModel`. A
        step with one counts for resources and for the size of further steps with `seconds`, unless these are 0: a step
        that entered an empty pipeline took the time of all stages.
        """
        has_prompts = len(batch.token_ids) > len(batch.sample_tokens)
        if self._draft_planner is not None and not has_prompts:
            self._draft_planner.record_time(batch.num_tokens, cost_s)
        if has_prompts and seconds:
            self._policy.step_size.record_time(batch.num_tokens, seconds)
            if self._is_pipeline:
                self._policy.chunk_times.record_time(batch, seconds)
            for resource in self._resources:
                resource.record_prefill(batch.num_tokens, seconds)

    def save_cache(self, timeout_s: float) -> None:
        """Saves cached pages where observers can, for `timeout_s` at most, unless a successor takes the cache over."""
        is_taken_over = self._policy.is_closed and any(observer.outlives_process for observer in self.cache.observers)
        for observer in () if is_taken_over else self.cache.observers:
            observer.save(self.cache.cached_pages(), timeout_s)

    def forget_plan(self) -> None:
        """Undoes the plan of the step behind the one in flight, which must not have been launched."""
        self._in_flight.pop()
        for resource in self._resources:
            resource.forget()

    def forget_steps(self) -> None:
        """Undoes the plans of all steps in flight, which must have ended or failed.

        Rows of which they may have overwritten something are computed again.
        """
        runs = self._stages.runs
        suspects = dict.fromkeys(req for resource in self._resources for req in resource.suspect(runs))
        while self._in_flight:
            self.forget_plan()
        self._has_forgotten = True
        for req in suspects:
            self._stages.preempt(req)

    @property
    def needs_token_delivery(self) -> bool:
        """True if a client, or the search for a stop string, needs the tokens of each step at once."""
        return self._stages.num_delivered > 0

    def pop_replies(self) -> list[ToDetokenizer]:
        """Returns the replies for the detokenizer since the last call, in order."""
        replies, self._replies = self._replies, []
        return replies

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name; `requests` and `pages_in_use`, among others, are 0 when idle."""
        stages, cache, policy, results = self._stages, self.cache, self._policy, self._results
        gauges: dict[str, float] = {
            "requests": len(stages.requests),
            "waiting": self.num_waiting,
            "waiting_tokens": sum(len(pending.token_ids) for pending in stages.waiting),
            "running": len(stages.running),
            "rows_all": policy.budget.max_num_seqs,
            "prefilling": len(stages.prefilling),
            "decoding": len(stages.decode),
            "paused": len(stages.paused),
            "compiling": len(stages.compiling),
            "replies": len(self._replies),
            "pages_free": cache.num_free,
            "pages_cached": cache.num_cached,
            "pages_held": cache.num_held,
            "pages_in_use": cache.num_pages - cache.num_available,
            "pages_all": cache.num_pages,
            "pages_evicted": cache.num_evicted,
            "pages_recovered": 0,
            "pages_dropped": 0,
            "cache_nodes": cache.num_nodes,
            "steps": self._num_steps,
            "steps_ahead": self._num_steps_ahead,
            "has_room": float(policy.has_room()),
            "admitted": policy.num_admitted,
            "preemptions": policy.num_preemptions,
            "prompt_tokens": policy.num_prompt_tokens,
            "prefix_hit_tokens": policy.num_hit_tokens,
            "resumed_tokens": policy.num_resumed_tokens,
            "recomputed_tokens": policy.num_recomputed_tokens,
            "output_tokens": results.num_output_tokens,
            "drafts": results.num_drafts,
            "draft_tokens": results.num_draft_tokens,
            "accepted_tokens": results.num_accepted_tokens,
        }
        for observer in cache.observers:
            gauges |= observer.gauges()
        gauges.update((f"finished_{reason}", count) for reason, count in results.num_finished.items())
        return gauges

    def check(self) -> None:
        """Asserts all invariants between two steps. It walks all pages: milliseconds for a large cache."""
        self._stages.check()

    def _take_request(self, message: UserMsg, replaced: PendingReq | None) -> None:
        if replaced is not None:
            self._stages.finish(replaced)
        self._replies.append(open_stream(message))
        try:
            check_possible(message, self._limits)
            for resource in self._resources:
                resource.refuse(message)
            if message.sampling_params.grammar is not None and self._grammars is None:
                raise bad_request("grammars are not supported here")
        except RequestError as error:
            self._results.num_finished["error"] += 1
            self._reply_end(refused_row(message, error.info))
            return
        pending = PendingReq(message, self._limits, time.monotonic_ns())
        self._enqueue(pending)
        self._replies += pending.pop_task_replies()  # the logprobs of a prompt of one token are complete
        lacking = [resource for resource in self._resources if resource.prepare(pending)]
        ending = pending.find_ending()
        if ending is not None and not lacking:
            self._reply_end(self._results.finish(pending, ending))

    def _enqueue(self, pending: PendingReq) -> None:
        grammars = self._grammars if pending.sampling_params.grammar is not None else None
        pending.grammar = None if grammars is None else grammars.find(pending)
        lacks_grammar = grammars is not None and pending.grammar is None
        self._stages.enqueue(pending, lacks_grammar=lacks_grammar)
        if grammars is not None and lacks_grammar:
            grammars.start(pending)

    def _release_compiled(self, grammars: GrammarSource) -> None:
        """Moves requests with compiled grammars to the queue, and ends those whose grammars failed to compile."""
        for pending, grammar in grammars.pop_built():
            if self._stages.compiling.get(pending.uid) is not pending:
                continue  # the request has ended meanwhile
            if isinstance(grammar, ErrorInfo):
                self._reply_end(self._results.finish(pending, Ending("error", error=grammar)))
            elif pending.num_output_tokens and grammar.is_complete:
                self._reply_end(self._results.finish(pending, COMPLETE))
            else:
                pending.grammar = grammar
                self._stages.release(pending)

    def _end_known(self, known: PendingReq | None, attempt: int, ending: Ending) -> None:
        if known is not None and known.attempt <= attempt:
            self._reply_end(self._results.finish(known, ending))

    def _drop(self, message: DropBefore) -> None:
        self._gone.record(message)
        for pending in [pending for uid, pending in self._stages.requests.items() if self._gone.has(uid)]:
            self._reply_end(self._results.finish(pending, ABORTED["abort"]))
        self._replies.append(message)

    def _flush(self, message: FlushCache) -> None:
        num_requests = 0 if message.is_forced else len(self._stages.requests)
        num_pages = 0 if num_requests else self.cache.flush()
        self._replies.append(CacheFlushed(message.uid, num_pages, num_requests))

    def _reply_end(self, row: FinishedRow) -> None:
        self._replies.append(DetokenizeMsg(self._num_steps, b"", b"", b"", (row,)))
