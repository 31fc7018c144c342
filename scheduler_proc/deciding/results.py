"""Applies the result of a step to its rows."""

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from messages.errors import ErrorInfo
from messages.ring.replies import FinishedRow, FinishReason, ToDetokenizer
from messages.ring.steps import NO_TOKEN, ForwardOutput
from scheduler_proc.deciding.in_flight import StepInFlight
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.resource import Resource
from scheduler_proc.deciding.pages.running_request import DraftRate, Req
from scheduler_proc.deciding.requests import PendingReq, State
from scheduler_proc.deciding.row_results import RowResult, split_result
from scheduler_proc.deciding.rows.delivery import Delivery, finished_row, no_token
from scheduler_proc.deciding.sampling.endings import NOT_FINITE, Ending, find_ending
from scheduler_proc.deciding.sampling.grammars import RequestGrammar
from scheduler_proc.deciding.sampling.logprob_columns import cut
from scheduler_proc.deciding.stages import Stages

FAULT = Ending("error")
"""The end of a row that got NO_TOKEN, until the reason is known."""


class Results:
    """Applies results to rows. The counters only grow."""

    def __init__(self, stages: Stages, cache: BlockAllocator, resources: Sequence[Resource] = ()):
        self._stages = stages
        self._cache = cache
        self._resources = resources
        self.num_output_tokens = 0
        self.num_drafts = 0
        """Rows of steps that had draft tokens."""
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)

    def finish(self, pending: PendingReq, ending: Ending) -> FinishedRow:
        """Ends a request in any state; returns its final row."""
        self._stages.finish(pending, is_reusable=ending.error is None)
        self.num_finished[ending.finish_reason] += 1
        return finished_row(pending, ending)

    def commit(
        self, step: StepInFlight, output: ForwardOutput, failures: Mapping[int, ErrorInfo]
    ) -> list[ToDetokenizer]:
        """Gives every row its next tokens, its end, or its prefill progress; returns the replies for clients in order.

        `failures` has the errors of rows that could not be computed, by index.
        """
        decode, delivery = self._stages.decode, Delivery(output.step_id, time.monotonic_ns())
        together, results = split_result(step, decode.reqs, output, failures)
        ended: list[tuple[PendingReq, Ending]] = []
        replies: list[ToDetokenizer] = []
        if together is not None:
            delivery.add_decode_rows(decode, *together)
            endings = dict(decode.advance(together.rows, together.token_ids))
            if decode.sampling.num_with_grammar:
                _follow_grammars(decode.reqs, together.rows, endings)
            ended += [(decode.reqs[row].pending, ending) for row, ending in endings.items()]
        in_decode = {result.req.uid for result in results if result.req.state is State.DECODE}
        for result in results:
            ending = self._commit_row(result, delivery, replies)
            if ending is not None:
                ended.append((result.req.pending, ending))
        if in_decode:
            decode.advance_to(in_decode)
        lost = self._commit_resources(results)
        finished = tuple([self.finish(pending, ending) for pending, ending in ended])
        for req in filter(step.runs, lost):
            self._stages.preempt(req)
        self.num_output_tokens += len(delivery.token_ids)
        if delivery.token_ids or finished:
            replies.append(delivery.message(finished))
        return replies

    def _commit_resources(self, results: Sequence[RowResult]) -> Iterable[Req]:
        """Applies the step to resources; returns the rows that have lost what they need to continue."""
        unfed = [result.req for result in results if result.chunk is None and not result.token_ids]
        lost: dict[Req, None] = {}
        for resource in self._resources:
            lost.update(dict.fromkeys(resource.commit(self._stages.runs, unfed)))
        return lost

    def _commit_row(self, result: RowResult, delivery: Delivery, replies: list[ToDetokenizer]) -> Ending | None:
        """Applies the result of one row; returns its ending, if it ends."""
        req, chunk, pending = result.req, result.chunk, result.req.pending
        if chunk is not None and chunk.draft_ids:
            delivery.num_draft_tokens += len(chunk.draft_ids)
            self._count_drafts(chunk.draft_rate, len(chunk.draft_ids), max(0, len(result.token_ids) - 1))
        token_ids, ending = _cut_run(pending, result.token_ids)
        error = result.error
        if result.task_entries is not None:
            assert pending.prompt_task is not None, "the request has no prompt task"
            error = None if pending.prompt_task.add(result.task_entries) else NOT_FINITE
        if error is None and ending is FAULT and not token_ids:
            error = no_token(pending)
        if error is not None:
            return Ending("error", error=error)
        if result.task_entries is not None:
            replies += pending.pop_task_replies()
        if chunk is not None and req.state is State.PREFILL:
            # A last token that got no next token is computed again, to sample one.
            req.num_computed_tokens = chunk.end - (chunk.requested.num_tokens > len(token_ids))
            self._cache.share(req)
            if not chunk.requested.num_tokens:
                return pending.find_ending()  # a request without output ends with its prompt
            if token_ids:
                delivery.add_prefilled(pending)
                pending.first_token_ns = pending.first_token_ns or delivery.committed_ns
        logprobs = result.logprobs
        delivery.add(pending, token_ids, None if logprobs is None else cut(logprobs, 0, len(token_ids)))
        req.token_ids.extend(token_ids)
        if ending is None and token_ids and req.state is State.PREFILL:
            self._stages.start_decoding(req)
        return Ending("error", error=no_token(pending)) if ending is FAULT else ending

    def _count_drafts(self, rate: DraftRate | None, num_drafts: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        if rate is not None:
            rate.add(num_drafts, num_accepted)


def _cut_run(pending: PendingReq, token_ids: "array[int]") -> tuple["array[int]", Ending | None]:
    """Returns the next tokens of a row up to the one that ends it, and its ending, if it ends."""
    length = len(pending.token_ids)
    for index, token_id in enumerate(token_ids):
        if token_id == NO_TOKEN:
            return token_ids[:index], FAULT
        ending = find_ending(pending.end_tokens, token_id, length + index + 1, pending.max_len)
        if pending.grammar is not None:
            ending = _follow_grammar(pending.grammar, token_id, ending)
        if ending is not None:
            return token_ids[: index + 1], ending
    return token_ids, None


def _follow_grammars(reqs: list[Req], rows: Sequence[int], endings: dict[int, Ending]) -> None:
    """Follows the grammars of rows in DECODE by their last tokens; updates `endings`, which is by row."""
    for row in rows:
        req = reqs[row]
        if req.pending.grammar is not None:
            ending = _follow_grammar(req.pending.grammar, req.token_ids[-1], endings.get(row))
            if ending is not None:
                endings[row] = ending


def _follow_grammar(grammar: RequestGrammar, token_id: int, ending: Ending | None) -> Ending | None:
    """Advances the grammar by a token unless the token itself ends the row; returns how the row ends.

    A complete grammar takes precedence over the maximum length.
    """
    return ending if ending is not None and ending.ended_by_token else grammar.accept(token_id) or ending
