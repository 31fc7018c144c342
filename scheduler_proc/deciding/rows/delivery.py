"""The messages for the detokenizer: the opening of a request, the tokens of a step, and the final rows."""

import time
from array import array
from collections.abc import Sequence

import msgspec

from messages.columns import INT32, INT64, pack_counts
from messages.errors import ErrorInfo
from messages.ring.replies import (
    NUM_CONTEXT_TOKENS,
    DetokenizeMsg,
    FinishedRow,
    OpenStream,
    PrefilledRow,
    Usage,
)
from messages.ring.requests import UserMsg
from messages.ring.steps import LogprobColumns
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.sampling.endings import NONE_IN_GRAMMAR, NONE_LEFT, NOT_FINITE, Ending
from scheduler_proc.deciding.sampling.logprob_columns import join


def open_stream(message: UserMsg) -> OpenStream:
    """Returns the announcement of a request, with the part of its prompt that decoding needs."""
    params = message.sampling_params
    wants_prompt = params.echo or params.num_prompt_logprobs is not None
    return OpenStream(
        uid=message.uid,
        attempt=message.attempt,
        stop=params.stop,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        output_ids=message.output_ids,
        num_chars_sent=message.num_chars_sent,
        prompt_ids=message.input_ids if wants_prompt else message.input_ids[-4 * NUM_CONTEXT_TOKENS :],
        echo=params.echo,
        num_logprobs=params.num_logprobs,
        num_prompt_logprobs=params.num_prompt_logprobs,
        min_tokens=params.min_tokens,
        begins_in_thought=message.begins_in_thought,
    )


class Delivery:
    """Builds the columns of one `DetokenizeMsg`. The result of the step arrived at `committed_ns`."""

    def __init__(self, step_id: int, committed_ns: int = 0) -> None:
        self.token_ids: array[int] = array(INT32)
        self.committed_ns = committed_ns
        self.num_draft_tokens = 0
        self._step_id = step_id
        self._uids: array[int] = array(INT64)
        self._attempts: array[int] = array(INT32)
        self._num_tokens: list[int] = []
        self._logprob_entries: array[int] = array(INT32)
        self._logprobs: list[LogprobColumns] = []
        self._prefilled: list[PrefilledRow] = []

    def add_decode_rows(
        self, decode: DecodeRows, rows: Sequence[int], token_ids: "array[int]", logprobs: LogprobColumns | None
    ) -> None:
        """Adds one token for each of these rows (ascending), before anything else is added."""
        assert not self._uids
        self._uids, self._attempts, self.token_ids = decode.uids[:], decode.attempts[:], token_ids[:]
        num_logprobs = decode.sampling.num_logprobs
        if len(rows) < len(decode):
            self._uids, self._attempts, num_logprobs = (
                array(column.typecode, [column[row] for row in rows])
                for column in (decode.uids, decode.attempts, num_logprobs)
            )
        self._num_tokens = [1] * len(token_ids)
        if logprobs is not None:
            requested = enumerate(num_logprobs)
            self._logprob_entries = array(INT32, [entry for entry, num_top in requested if num_top >= 0])
            self._logprobs = [logprobs]

    def add(self, pending: PendingReq, token_ids: Sequence[int], logprobs: LogprobColumns | None) -> None:
        """Adds the tokens of one row, if it has any."""
        if not token_ids:
            return
        self._uids.append(pending.uid)
        self._attempts.append(pending.attempt)
        self._num_tokens.append(len(token_ids))
        if logprobs is not None:
            self._logprob_entries.extend(range(len(self.token_ids), len(self.token_ids) + len(token_ids)))
            self._logprobs.append(logprobs)
        self.token_ids.extend(token_ids)

    def add_prefilled(self, pending: PendingReq) -> None:
        """Adds the usage of a request with its first token."""
        self._prefilled.append(PrefilledRow(pending.uid, pending.attempt, usage_of(pending)))

    def message(self, finished: tuple[FinishedRow, ...]) -> DetokenizeMsg:
        """Returns the message; `finished` are the rows that ended with the step."""
        return DetokenizeMsg(
            self._step_id,
            self._uids.tobytes(),
            self._attempts.tobytes(),
            self.token_ids.tobytes(),
            finished,
            self._logprob_entries.tobytes(),
            join(self._logprobs, self._logprobs[0].num_top) if self._logprobs else None,
            tuple(self._prefilled),
            pack_counts(self._num_tokens),
            self.committed_ns,
            num_draft_tokens=self.num_draft_tokens,
        )


def no_token(pending: PendingReq) -> ErrorInfo:
    """Returns the reason why a request got no next token."""
    processors, grammar = pending.logits_processors, pending.grammar
    if grammar is not None:
        if grammar.error is not None:
            return grammar.error
        bans = None if processors is None else processors.bans(pending.token_ids, pending.num_output_tokens)
        return NONE_IN_GRAMMAR if bans is not None and grammar.leaves_none(bans) else NOT_FINITE
    is_own_fault = processors is not None and processors.leaves_none(pending.token_ids, pending.num_output_tokens)
    return NONE_LEFT if is_own_fault else NOT_FINITE


def usage_of(pending: PendingReq) -> Usage:
    num_image_tokens = sum(span.length for span in pending.spans if span.kind == "image")
    return Usage(pending.num_prompt_tokens, pending.cached_tokens or 0, pending.num_output_tokens, num_image_tokens)


def finished_row(pending: PendingReq, ending: Ending) -> FinishedRow:
    """Returns the final row of a request."""
    return FinishedRow(
        pending.uid,
        pending.attempt,
        ending.finish_reason,
        usage_of(pending),
        pending.stamped(time.monotonic_ns()),
        ending.ended_by_token,
        ending.stop_reason,
        ending.error,
    )


def refused_row(message: UserMsg, error: ErrorInfo) -> FinishedRow:
    """Returns the final row of a refused request."""
    now_ns = time.monotonic_ns()
    stamps = msgspec.structs.replace(message.stamps, queued_ns=now_ns, finished_ns=now_ns)
    return FinishedRow(message.uid, message.attempt, "error", Usage(), stamps, error=error)
