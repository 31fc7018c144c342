"""Builds the message with the tokens of a step for the detokenizer."""

from array import array
from collections.abc import Sequence

from messages.columns import INT32, INT64, pack_counts
from messages.ring.replies import DetokenizeMsg, FinishedRow, PrefilledRow
from messages.ring.steps import LogprobColumns
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.rows.finished_rows import usage_of
from scheduler_proc.deciding.sampling.logprob_columns import join


class Delivery:
    """Builds the columns of one `DetokenizeMsg`. The result of the step arrived at `committed_ns`."""

    def __init__(self, step_id: int, committed_ns: int = 0) -> None:
        self.token_ids: array[int] = array(INT32)
        self.committed_ns = committed_ns
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
            wanted = enumerate(num_logprobs)
            self._logprob_entries = array(INT32, [entry for entry, num_top in wanted if num_top >= 0])
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
        )
