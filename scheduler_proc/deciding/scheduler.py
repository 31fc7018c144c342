"""The deciding half in one object: messages in, steps out, results in, replies out."""

import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Protocol

from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.cache import ExplainCache, ListCache
from messages.ring.replies import CacheFlushed, DetokenizeMsg, FinishedRow, ToDetokenizer
from messages.ring.requests import AbortMsg, DropBefore, FlushCache, FramesLost, StopSeen, ToScheduler, UserMsg
from messages.ring.steps import Batch, ForwardOutput
from messages.ring.uids import GoneRequests
from scheduler_proc.deciding.batch_columns import BatchBuilder
from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import DraftModel
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.drafts import Drafter
from scheduler_proc.deciding.in_flight import MustCommitError, StepInFlight
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_journal import PageJournal
from scheduler_proc.deciding.policy import Budget, Policy
from scheduler_proc.deciding.refusals import check_possible
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.results import Results
from scheduler_proc.deciding.rows.endings import ABORTED, STOP_STRING, Ending
from scheduler_proc.deciding.rows.finished_rows import refused_row
from scheduler_proc.deciding.rows.grammars import COMPLETE, RequestGrammar
from scheduler_proc.deciding.rows.openings import open_stream
from scheduler_proc.deciding.schedule_reports import ScheduleReports
from scheduler_proc.deciding.stages import Stages

NO_FAILURES: Mapping[int, ErrorInfo] = {}


class GrammarSource(Protocol):
    """Compiles grammars beside the loop, as `scheduler_proc/grammar_builder.py` does."""

    def find(self, pending: PendingReq) -> RequestGrammar | None:
        """Returns the grammar of a request, if it is there at once."""
        ...

    def start(self, pending: PendingReq) -> None:
        """Has it compiled."""
        ...

    def pop_built(self) -> list[tuple[PendingReq, RequestGrammar | ErrorInfo]]:
        """Returns those that have compiled, or why they have not; each once."""
        ...


class Scheduler:
    """Takes messages, plans steps, commits their results, and collects what the detokenizer must know.

    The caller goes round: `receive` (any number), `schedule`, and if that returned a step, `commit` with its result. It
    may call `schedule` once more before that `commit`, with the first step in flight; commits are in the same order.
    `cache` must have room for a request of `limits.max_model_len` tokens: the first in priority can then always go on.
    Without `draft_lengths` each row gets all that `drafter` proposes and that has room. With `plans_decodes_alone`
    nothing is planned behind a step in flight but the next one of the same rows in DECODE.
    """

    def __init__(
        self,
        cache: BlockAllocator,
        limits: Limits,
        budget: Budget,
        drafter: Drafter | DraftModel | None = None,
        grammars: GrammarSource | None = None,
        draft_lengths: DraftLengths | None = None,
        *,
        plans_decodes_alone: bool = False,
    ):
        assert cache.num_pages * cache.page_size >= limits.max_model_len
        self._cache = cache
        self._limits = limits
        self._stages = Stages(cache)
        self._draft_planner = None if drafter is None else DraftPlanner(cache, drafter, draft_lengths)
        self._policy = Policy(self._stages, cache, budget, self._draft_planner)
        self._reports = ScheduleReports(self._stages, cache, self._policy)
        self._results = Results(self._stages, cache)
        self._builder = BatchBuilder(cache.num_pages, cache.page_size, limits.max_model_len)
        self._grammars = grammars
        self._draft_lengths = draft_lengths
        self._plans_decodes_alone = plans_decodes_alone
        self._in_flight: deque[StepInFlight] = deque()
        self._replies: list[ToDetokenizer] = []
        self._num_steps = 0
        self._num_steps_ahead = 0
        self._must_tell_drained = False
        self._gone = GoneRequests()

    @property
    def journal(self) -> PageJournal | None:
        return self._cache.journal

    @property
    def is_idle(self) -> bool:
        return not self._stages.requests

    def receive(self, message: ToScheduler) -> None:
        """Takes a new request, ends known ones, empties the cache; what is older than the known attempt is dropped."""
        if isinstance(message, FramesLost):
            self._replies.append(message)  # the frontend hears of it by way of the detokenizer
            return
        known = self._stages.requests.get(message.uid)
        match message:
            case UserMsg():
                # One that a dead frontend has sent may be overtaken by another one's `DropBefore`.
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
                self._replies.append(self._cache.answer(message))

    def schedule(self) -> Batch | None:
        """Returns the next step, or `None` where there is no request, or none that may have a row.

        With a step in flight, `None` also means that it has to be committed first. What timelines must know of the plan
        is among the replies then, and should leave before a long step runs.
        """
        if self._grammars is not None:
            self._release_compiled(self._grammars)
        self._cache.collect_loaded()
        if self.is_idle or (self._policy.is_closed and not self._stages.running):
            return None
        assert len(self._in_flight) < 2, "there are two steps in flight"
        before = self._in_flight[0] if self._in_flight else None
        if before is not None and not self.may_plan_behind:
            return None
        try:
            rows = self._stages.decode if before is None else before.rows_behind()
            rows, chunks = self._policy.choose_rows(rows, before)
        except MustCommitError:
            return None
        if not rows.reqs and not chunks:
            is_held = self._stages.compiling or self._policy.starved or self._cache.has_loads
            assert before is not None or is_held, "there are requests and none can run"
            return None
        self._num_steps += 1
        self._num_steps_ahead += before is not None
        self._in_flight.append(StepInFlight(rows.reqs, chunks, self._stages))
        report = self._reports.make(self._num_steps, chunks)
        if report is not None:
            self._replies.append(report)
        return self._builder.build(self._num_steps, rows, chunks)

    @property
    def may_plan_behind(self) -> bool:
        """Tells whether a step may be planned behind one in flight, from what is known of it now."""
        if self._draft_planner is not None:
            return False  # what may come next is proposed from all tokens, and how many there will be is not known
        stages = self._stages
        return not self._plans_decodes_alone or not (
            self._policy.has_prompts or stages.decode.sampling.num_that_change_logits
        )

    def starve(self, uids: Collection[int]) -> None:
        """From now on leaves out of its steps what is in `uids` at the time, on purpose; 0 stands for the queue."""
        self._policy.starved = uids

    def close_queue(self) -> None:
        """Gives no row to what waits from now on: rows that run go on, and then the process will be replaced."""
        self._policy.is_closed = True
        self._must_tell_drained = True

    @property
    def num_waiting(self) -> int:
        return len(self._stages.waiting) + len(self._stages.compiling)

    def pop_drained(self) -> bool:
        """Tells once, after `close_queue`, that the last row has ended."""
        is_drained = self._must_tell_drained and not self._stages.running
        self._must_tell_drained = self._must_tell_drained and not is_drained
        return is_drained

    def commit(self, output: ForwardOutput, failures: Mapping[int, ErrorInfo] = NO_FAILURES) -> None:
        """Moves every row of the first step in flight on by its result, but for those that have ended meanwhile.

        `failures` are rows that could not be computed, by index; those of them that sample have the next token -1.
        """
        step = self._in_flight.popleft()
        assert not (self._in_flight and output.num_tokens), "a step was planned behind one whose rows got other tokens"
        self._replies += self._results.commit(step, output, failures)
        if self._in_flight:  # it was given pages before those of this step were full
            self._stages.decode.enter_pages()
            for req, _ in self._stages.decode.reqs_without_slot():
                self._cache.seal(req)

    def note_time(self, batch: Batch, seconds: float, cost_s: float) -> None:
        """Tells what a step and its plan took: without a chunk of a prompt `cost_s`, told by the clock of `DraftModel`,
        decides about draft tokens; with one `seconds` decide about loads."""
        lengths, planner, tiers = self._draft_lengths, self._draft_planner, self._cache.tiers
        if lengths is not None and planner is not None and len(batch.token_ids) == len(batch.sample_tokens):
            lengths.cost.add(batch.num_tokens, cost_s - planner.seconds)
        if tiers is not None and len(batch.token_ids) > len(batch.sample_tokens):
            tiers.note_prefill(batch.num_tokens, seconds)

    def save_cache(self, timeout_s: float) -> None:
        """Keeps what is cached in the tiers below, if there are any and no successor takes it over, for so long."""
        if not (self._policy.is_closed and self.journal is not None):
            self._cache.save(timeout_s)

    def forget_plan(self) -> None:
        """Lets all be as if the step behind the one in flight had not been planned; it has not been launched."""
        self._in_flight.pop()

    def forget_steps(self) -> None:
        """Lets all be as if the steps in flight had not been planned; they must have ended, well or not."""
        self._in_flight.clear()

    @property
    def must_tell_tokens(self) -> bool:
        """Tells whether somebody waits for the tokens of a step: a client, or the search for a stop string."""
        return self._stages.num_told > 0

    def pop_replies(self) -> list[ToDetokenizer]:
        """Returns, and forgets, what the detokenizer must know, in order."""
        replies, self._replies = self._replies, []
        return replies

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name; `requests` and `pages_in_use`, among others, are 0 when idle."""
        stages, cache, policy, results = self._stages, self._cache, self._policy, self._results
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
            "pages_recovered": 0 if cache.journal is None else cache.journal.num_recovered,
            "pages_dropped": 0 if cache.journal is None else cache.journal.num_dropped,
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
        if cache.tiers is not None:
            gauges |= cache.tiers.gauges()
        gauges.update((f"finished_{reason}", count) for reason, count in results.num_finished.items())
        return gauges

    def check(self) -> None:
        """Asserts everything that is true between two steps (walks all pages: milliseconds for a large cache)."""
        self._stages.check()

    def _take_request(self, message: UserMsg, replaced: PendingReq | None) -> None:
        if replaced is not None:
            self._stages.finish(replaced)
        self._replies.append(open_stream(message))
        try:
            check_possible(message, self._limits)
            if message.sampling_params.grammar is not None and self._grammars is None:
                raise bad_request("grammars are not supported here")
        except RequestError as error:
            self._results.num_finished["error"] += 1
            self._reply_end(refused_row(message, error.info))
            return
        pending = PendingReq(message, self._limits, time.monotonic_ns())
        self._enqueue(pending)
        self._replies += pending.take_prompt_replies()  # of a prompt of one token all is known
        ending = pending.find_ending()
        if ending is not None:
            self._reply_end(self._results.finish(pending, ending))

    def _enqueue(self, pending: PendingReq) -> None:
        grammars = self._grammars if pending.sampling_params.grammar is not None else None
        pending.grammar = None if grammars is None else grammars.find(pending)
        lacks_grammar = grammars is not None and pending.grammar is None
        self._stages.enqueue(pending, lacks_grammar=lacks_grammar)
        if grammars is not None and lacks_grammar:
            grammars.start(pending)

    def _release_compiled(self, grammars: GrammarSource) -> None:
        """Lets requests into the queue whose grammars have compiled, and ends those whose grammars have not."""
        for pending, grammar in grammars.pop_built():
            if self._stages.compiling.get(pending.uid) is not pending:
                continue  # it has ended meanwhile
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
        self._gone.note(message)
        for pending in [pending for uid, pending in self._stages.requests.items() if self._gone.has(uid)]:
            self._reply_end(self._results.finish(pending, ABORTED["abort"]))
        self._replies.append(message)

    def _flush(self, message: FlushCache) -> None:
        num_requests = 0 if message.is_forced else len(self._stages.requests)
        num_pages = 0 if num_requests else self._cache.flush()
        self._replies.append(CacheFlushed(message.uid, num_pages, num_requests))

    def _reply_end(self, row: FinishedRow) -> None:
        self._replies.append(DetokenizeMsg(self._num_steps, b"", b"", b"", (row,)))
