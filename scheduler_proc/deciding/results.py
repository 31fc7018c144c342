"""What becomes of each row of a step once its result is there."""

import time
from array import array
from collections.abc import Mapping
from typing import get_args

import msgspec

from messages.columns import INT32, INT64, unpack_int32
from messages.errors import ErrorInfo
from messages.replies import DetokenizeMsg, FinishedRow, FinishReason, PrefilledRow, PromptScored, ToDetokenizer
from messages.steps import ForwardOutput, LogprobColumns
from scheduler_proc.deciding.batch_columns import Chunk
from scheduler_proc.deciding.block_allocator import BlockAllocator
from scheduler_proc.deciding.endings import NOT_FINITE, Ending, find_ending, finished_row, no_token, usage_of
from scheduler_proc.deciding.logprob_columns import cut_up, has_nan, of_delivered
from scheduler_proc.deciding.requests import NO_TOKEN, Limits, PendingReq, Req
from scheduler_proc.deciding.stages import Stages


class Results:
    """Moves every row of a step on by what the step computed for it. The counters only grow."""

    def __init__(self, stages: Stages, cache: BlockAllocator, limits: Limits):
        self._stages = stages
        self._cache = cache
        self._limits = limits
        self.num_output_tokens = 0
        self.num_finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)

    def finish(self, pending: PendingReq, ending: Ending) -> FinishedRow:
        """Ends a request in whatever state it is; returns the last word about it."""
        self._stages.finish(pending, is_reusable=ending.error is None)
        self.num_finished[ending.finish_reason] += 1
        return finished_row(pending, ending)

    def commit(
        self, chunks: list[Chunk], output: ForwardOutput, failures: Mapping[int, ErrorInfo]
    ) -> list[ToDetokenizer]:
        """Gives every row its next token, its end, or more prompt to come; returns what clients must hear, in order.

        The rows are those in DECODE, then `chunks`. `failures` are rows that could not be computed, by index; those of
        them that sample have NO_TOKEN.
        """
        next_tokens = unpack_int32(output.next_tokens)
        num_decode_rows = len(self._stages.decode)
        delivered = self._deliver(chunks, next_tokens, output)
        scores = cut_up(output.prompt_logprobs, [chunk.num_scored for chunk in chunks])
        finished = self._commit_decode_rows(next_tokens[:num_decode_rows], failures)
        replies: list[ToDetokenizer] = []
        chunk_tokens = iter(next_tokens[num_decode_rows:])
        for row, (chunk, chunk_scores) in enumerate(zip(chunks, scores, strict=True), num_decode_rows):
            token_id = next(chunk_tokens) if chunk.samples else None
            error = failures.get(row) or _find_fault(chunk.req.pending, token_id, chunk_scores)
            if error is None and chunk_scores is not None:
                replies += _add_scores(chunk.req.pending, chunk_scores)
            ending = Ending("error", error=error) if error is not None else self._commit_chunk(chunk, token_id)
            if ending is not None:
                finished.append(self.finish(chunk.req.pending, ending))
        if delivered.uids or finished:
            replies.append(msgspec.structs.replace(delivered, finished=tuple(finished)))
        return replies

    def _deliver(self, chunks: list[Chunk], next_tokens: "array[int]", output: ForwardOutput) -> DetokenizeMsg:
        """Returns the tokens of the rows that got one, with their logprobs."""
        decode = self._stages.decode
        sampling = [chunk.req.pending for chunk in chunks if chunk.samples]
        uids = decode.uids + array(INT64, [pending.uid for pending in sampling])
        attempts = decode.attempts + array(INT32, [pending.attempt for pending in sampling])
        assert len(uids) == len(next_tokens), "a step must give one token to each row that samples"
        entries, logprobs = b"", None
        if output.logprobs is not None:
            wanted = decode.sampling.num_logprobs + array(INT32, [pending.num_logprobs for pending in sampling])
            entries, logprobs = of_delivered(wanted, next_tokens, output.logprobs)
        prefilled = _prefilled(sampling, next_tokens[len(decode.uids) :])
        if NO_TOKEN in next_tokens:
            kept = [row for row, token_id in enumerate(next_tokens) if token_id != NO_TOKEN]
            uids, attempts = array(INT64, [uids[row] for row in kept]), array(INT32, [attempts[row] for row in kept])
            next_tokens = array(INT32, [next_tokens[row] for row in kept])
        self.num_output_tokens += len(next_tokens)
        columns = uids.tobytes(), attempts.tobytes(), next_tokens.tobytes()
        return DetokenizeMsg(output.step_id, *columns, (), entries, logprobs, prefilled)

    def _commit_decode_rows(self, next_tokens: "array[int]", failures: Mapping[int, ErrorInfo]) -> list[FinishedRow]:
        decode = self._stages.decode
        ended = [(row, decode.reqs[row]) for row in decode.advance(next_tokens)]
        return [self.finish(req.pending, self._ending(req, failures.get(row))) for row, req in ended]

    def _ending(self, req: Req, error: ErrorInfo | None) -> Ending:
        if req.token_ids[-1] == NO_TOKEN:
            req.token_ids.pop()
            return Ending("error", error=error or no_token(req.pending))
        ending = find_ending(req.pending, self._limits)
        assert ending is not None, "a row was taken to end and does not"
        return ending

    def _commit_chunk(self, chunk: Chunk, token_id: int | None) -> Ending | None:
        """Counts the chunk as computed; with the prompt's last one the row begins to decode, or ends already."""
        req, pending = chunk.req, chunk.req.pending
        req.num_computed_tokens = chunk.end
        self._cache.share(req)
        if token_id is None:
            return find_ending(pending, self._limits)  # one that gets no token ends with its prompt
        req.token_ids.append(token_id)
        pending.first_token_ns = pending.first_token_ns or time.monotonic_ns()
        ending = find_ending(pending, self._limits)
        if ending is None:
            self._stages.start_decoding(req)
        return ending


def _prefilled(sampling: list[PendingReq], next_tokens: "array[int]") -> tuple[PrefilledRow, ...]:
    """Returns what the prompts took of the requests whose last chunk got a token."""
    return tuple(
        [
            PrefilledRow(pending.uid, pending.attempt, usage_of(pending))
            for pending, token_id in zip(sampling, next_tokens, strict=True)
            if token_id != NO_TOKEN
        ]
    )


def _find_fault(pending: PendingReq, token_id: int | None, scores: LogprobColumns | None) -> ErrorInfo | None:
    """Returns what is wrong with the result of a chunk, if anything is."""
    if token_id == NO_TOKEN:
        return no_token(pending)
    return NOT_FINITE if scores is not None and has_nan(scores) else None


def _add_scores(pending: PendingReq, columns: LogprobColumns) -> list[PromptScored]:
    """Notes logprobs of the prompt; returns what is told once all are known."""
    scores = pending.scores
    assert scores is not None, "a prompt was scored that need not be"
    scores.add(columns)
    return [PromptScored(pending.uid, pending.attempt, scores.take_all())] if scores.is_complete else []
