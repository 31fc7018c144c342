"""What becomes of each row of a step once its result is there."""

import time
from array import array
from collections.abc import Mapping

from messages.columns import INT32, INT64, unpack_int32
from messages.errors import ErrorInfo
from messages.replies import DetokenizeMsg, FinishedRow
from messages.steps import ForwardOutput
from scheduler_proc.deciding.batch_columns import Chunk
from scheduler_proc.deciding.endings import NOT_FINITE, Ending, find_ending, finished_row
from scheduler_proc.deciding.kv_cache import KvCache
from scheduler_proc.deciding.requests import NO_TOKEN, Limits, PendingReq, Req
from scheduler_proc.deciding.stages import Stages


class Results:
    """Moves every row of a step on by what the step computed for it."""

    def __init__(self, stages: Stages, cache: KvCache, limits: Limits):
        self._stages = stages
        self._cache = cache
        self._limits = limits

    def finish(self, pending: PendingReq, ending: Ending) -> FinishedRow:
        """Ends a request in whatever state it is; returns the last word about it."""
        self._stages.finish(pending, is_reusable=ending.error is None)
        return finished_row(pending, ending)

    def commit(
        self, chunks: list[Chunk], output: ForwardOutput, failures: Mapping[int, ErrorInfo]
    ) -> DetokenizeMsg | None:
        """Gives every row its next token, its end, or more prompt to come; returns what clients must hear of it.

        The rows are those in DECODE, then `chunks`. `failures` are rows that could not be computed, by index; those of
        them that sample have NO_TOKEN.
        """
        next_tokens = unpack_int32(output.next_tokens)
        decode = self._stages.decode
        num_decode_rows = len(decode)
        sampling = [chunk.req.pending for chunk in chunks if chunk.samples]
        uids = decode.uids + array(INT64, [pending.uid for pending in sampling])
        attempts = decode.attempts + array(INT32, [pending.attempt for pending in sampling])
        assert len(uids) == len(next_tokens), "a step must give one token to each row that samples"
        finished = self._commit_decode_rows(next_tokens[:num_decode_rows], failures)
        chunk_tokens = iter(next_tokens[num_decode_rows:])
        for row, chunk in enumerate(chunks, num_decode_rows):
            token_id = next(chunk_tokens) if chunk.samples else None
            ending = self._commit_chunk(chunk, token_id, failures.get(row))
            if ending is not None:
                finished.append(self.finish(chunk.req.pending, ending))
        if NO_TOKEN in next_tokens:
            kept = [row for row, token_id in enumerate(next_tokens) if token_id != NO_TOKEN]
            uids, attempts = array(INT64, [uids[row] for row in kept]), array(INT32, [attempts[row] for row in kept])
            next_tokens = array(INT32, [next_tokens[row] for row in kept])
        if not uids and not finished:
            return None
        columns = uids.tobytes(), attempts.tobytes(), next_tokens.tobytes()
        return DetokenizeMsg(output.step_id, *columns, tuple(finished))

    def _commit_decode_rows(self, next_tokens: "array[int]", failures: Mapping[int, ErrorInfo]) -> list[FinishedRow]:
        decode = self._stages.decode
        ended = [(row, decode.reqs[row]) for row in decode.advance(next_tokens)]
        return [self.finish(req.pending, self._ending(req, failures.get(row))) for row, req in ended]

    def _ending(self, req: Req, error: ErrorInfo | None) -> Ending:
        if req.token_ids[-1] == NO_TOKEN:
            req.token_ids.pop()
            return Ending("error", error=error or NOT_FINITE)
        ending = find_ending(req.pending, self._limits)
        assert ending is not None, "a row was taken to end and does not"
        return ending

    def _commit_chunk(self, chunk: Chunk, token_id: int | None, error: ErrorInfo | None) -> Ending | None:
        """Counts the chunk as computed; with the prompt's last one the row begins to decode, or ends already."""
        if error is not None or token_id == NO_TOKEN:
            return Ending("error", error=error or NOT_FINITE)
        req, pending = chunk.req, chunk.req.pending
        req.num_computed_tokens += chunk.num_tokens
        self._cache.share(req)
        if token_id is None:
            return None
        req.token_ids.append(token_id)
        pending.first_token_ns = pending.first_token_ns or time.monotonic_ns()
        ending = find_ending(pending, self._limits)
        if ending is None:
            self._stages.start_decoding(req)
        return ending
