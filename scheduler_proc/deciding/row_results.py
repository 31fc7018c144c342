"""Splits the result of a step by rows, and verifies draft tokens.

A sampled token is a function of the tokens before it, the seed and its position, whatever else is in the step. So a
draft token is accepted if and only if it equals the token that is sampled in its place, and drafts change no output.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NamedTuple, TypeVar

import msgspec

from messages.columns import INT32, unpack_int32
from messages.errors import ErrorInfo
from messages.ring.axes import Axis, slice_columns
from messages.ring.steps import NO_TOKEN, WITH_LOGPROB, ForwardOutput, LogprobColumns
from scheduler_proc.deciding.in_flight import StepInFlight
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.sampling.logprob_columns import cut, join
from scheduler_proc.deciding.sampling.output_counts import OutputCounts

T = TypeVar("T", bound=msgspec.Struct)


class DecodeResults(NamedTuple):
    """One next token for each of these rows in DECODE (ascending), and logprobs for the rows that request them."""

    rows: Sequence[int]
    token_ids: "array[int]"
    logprobs: LogprobColumns | None


class RowResult(NamedTuple):
    """What a step computed for one row: its next tokens, their logprobs if requested, and entries of its prompt task.

    `chunk` is `None` for a row in DECODE without draft tokens. `error`: why the row could not be computed.
    """

    req: Req
    chunk: Chunk | None
    token_ids: "array[int]"
    logprobs: LogprobColumns | None
    task_entries: msgspec.Struct | None
    error: ErrorInfo | None


def split_result(
    step: StepInFlight, running: list[Req], output: ForwardOutput, failures: Mapping[int, ErrorInfo]
) -> tuple[DecodeResults | None, list[RowResult]]:
    """Returns the results of `step`, without rows that have ended since it was planned; `running` are those in DECODE.

    Rows without draft tokens are returned together if each got one token, which keeps the cost per row low. The others,
    or all rows in unusual cases, are returned one by one. `failures` has the errors of rows that could not be computed,
    by index.
    """
    reader = _Reader(output)
    is_odd = not step.decode_reqs or output.num_tokens or failures
    together = None if is_odd else _read_decode_rows(reader, step, running)
    rows: list[tuple[Req, Chunk | None]] = [] if together else [(req, None) for req in step.decode_reqs]
    rows += [(chunk.req, chunk) for chunk in step.chunks]
    results = [reader.read(req, chunk, failures.get(row)) for row, (req, chunk) in enumerate(rows)]
    reader.check_end()
    return together, [result for result in results if step.runs(result.req)]


def _read_decode_rows(reader: "_Reader", step: StepInFlight, running: list[Req]) -> DecodeResults | None:
    """Reads the rows in DECODE together; returns `None` if one has no token or their order has changed."""
    reqs = step.decode_reqs
    is_kept = [] if step.all_run else [step.runs(req) for req in reqs]
    rows = _find_rows(list(compress(reqs, is_kept)) if is_kept else reqs, running)
    if rows is None or NO_TOKEN in reader.next_tokens[: len(reqs)]:
        return None
    is_requested = [req.pending.num_logprobs >= 0 for req in reqs] if reader.has_logprobs else []
    if is_requested:
        token_ids, logprobs = reader.read_tokens(OutputCounts(len(reqs), sum(is_requested)))
    else:
        token_ids, logprobs = reader.read_first_tokens(len(reqs)), None
    if all(is_kept):
        return DecodeResults(rows, token_ids, logprobs)
    kept = array(INT32, compress(token_ids, is_kept))
    return DecodeResults(rows, kept, _compress(logprobs, list(compress(is_kept, is_requested))))


def _find_rows(reqs: list[Req], running: list[Req]) -> Sequence[int] | None:
    """Returns the indices of `reqs` in `running`, `None` if one is missing or they are in another order."""
    if reqs == running:
        return range(len(running))
    uids = {req.uid for req in reqs}
    rows = [row for row, req in enumerate(running) if req.uid in uids]
    return rows if [running[row] for row in rows] == reqs else None


def num_accepted(draft_ids: "array[int]", sampled: Sequence[int]) -> int:
    """Returns how many tokens of `sampled` are valid: the first one, and one after each accepted draft token.

    `sampled[i]` was sampled after the first i draft tokens; the last ones may be missing.
    """
    for index, draft_id in enumerate(draft_ids[: len(sampled)]):
        if sampled[index] != draft_id:
            return index + 1
    return min(len(sampled), len(draft_ids) + 1)


class _Reader:
    """Reads the columns of a result row by row."""

    def __init__(self, output: ForwardOutput):
        self.next_tokens = unpack_int32(output.next_tokens)
        self.has_logprobs = output.logprobs is not None
        self._output = output
        self._counts = iter(unpack_int32(output.num_tokens)) if output.num_tokens else None
        self._num_tokens = self._num_logprobs = 0
        self._num_task: dict[str, int] = {}
        """By the field of `ForwardOutput`."""

    def read_tokens(self, counts: OutputCounts) -> tuple["array[int]", LogprobColumns | None]:
        """Returns the next tokens and logprobs."""
        start, self._num_tokens = self._num_tokens, self._num_tokens + counts.num_tokens
        logprobs = _cut(self._output.logprobs, WITH_LOGPROB, self._num_logprobs, counts.num_logprobs)
        self._num_logprobs += counts.num_logprobs
        return self.next_tokens[start : self._num_tokens], logprobs

    def read_first_tokens(self, count: int) -> "array[int]":
        """Returns the first tokens. Faster than `read_tokens`, for steps without logprobs."""
        self._num_tokens = count
        return self.next_tokens[:count]

    def _read_task(self, req: Req, count: int) -> msgspec.Struct | None:
        task = req.pending.prompt_task
        if task is None or not count:
            return None
        field, axis = task.kind.field, task.kind.axis
        start = self._num_task.get(field, 0)
        self._num_task[field] = start + count
        return _cut(getattr(self._output, field), axis, start, count)

    def read(self, req: Req, chunk: Chunk | None, error: ErrorInfo | None) -> RowResult:
        """Returns the result of the next row, without tokens sampled after a rejected draft token.

        A row with an `error` has no entries.
        """
        if error is not None:
            return RowResult(req, chunk, array(INT32), None, None, error)
        requested = req.outputs_in_decode() if chunk is None else chunk.requested
        if requested.num_tokens and self._counts is not None:
            requested = requested.limited(next(self._counts))
        token_ids, logprobs = self.read_tokens(requested)
        if chunk is not None and chunk.draft_ids:
            token_ids = token_ids[: num_accepted(chunk.draft_ids, token_ids)]
        return RowResult(req, chunk, token_ids, logprobs, self._read_task(req, requested.num_task), None)

    def check_end(self) -> None:
        assert self._num_tokens == len(self.next_tokens), "a step must give one token to each row that samples"


def _cut(columns: T | None, axis: Axis, start: int, count: int) -> T | None:
    """Returns `count` entries of `axis` from `start` on; `None` for a count of 0."""
    if not count:
        return None
    assert columns is not None, f"the result lacks the entries of each {axis.name}"
    return slice_columns(columns, axis, start, start + count)


def _compress(columns: LogprobColumns | None, is_kept: list[bool]) -> LogprobColumns | None:
    """Returns the logprobs of the tokens that are kept."""
    if columns is None:
        return None
    kept = [cut(columns, index, index + 1) for index, keeps in enumerate(is_kept) if keeps]
    return join(kept, columns.num_top) if kept else None
