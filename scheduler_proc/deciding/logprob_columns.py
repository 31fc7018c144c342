"""Logprobs as columns: cutting them, joining them, and which of a step's tokens they belong to."""

import math
from array import array
from collections.abc import Sequence

from messages.axes import join_columns, slice_columns
from messages.columns import FLOAT32, INT32, num_int32, pack_int32
from messages.steps import WITH_LOGPROB, LogprobColumns

NO_TOKEN = -1
"""The next token of a row whose logits were not finite."""


def cut(columns: LogprobColumns, start: int, stop: int) -> LogprobColumns:
    """Returns the tokens `start` to `stop` (exclusive)."""
    return slice_columns(columns, WITH_LOGPROB, start, stop)


def cut_up(columns: LogprobColumns | None, counts: Sequence[int]) -> list[LogprobColumns | None]:
    """Returns as many tokens as each count says, one after another; `None` for a count of 0."""
    parts: list[LogprobColumns | None] = []
    start = 0
    for count in counts:
        assert columns is not None or not count, "logprobs are missing"
        parts.append(cut(columns, start, start + count) if columns is not None and count else None)
        start += count
    return parts


def with_num_top(columns: LogprobColumns, num_top: int) -> LogprobColumns:
    """Returns the same tokens with `num_top` alternatives; where there were fewer, NO_TOKEN with -inf fills up."""
    if columns.num_top == num_top:
        return columns
    num_tokens = num_int32(columns.token_ids)
    top_ids = array(INT32, [NO_TOKEN]) * (num_tokens * num_top)
    top_logprobs = array(FLOAT32, [-math.inf]) * (num_tokens * num_top)
    old_ids, old_logprobs = array(INT32, columns.top_ids), array(FLOAT32, columns.top_logprobs)
    for place in range(min(num_top, columns.num_top)):
        top_ids[place::num_top] = old_ids[place :: columns.num_top]
        top_logprobs[place::num_top] = old_logprobs[place :: columns.num_top]
    return LogprobColumns(columns.token_ids, columns.logprobs, num_top, top_ids.tobytes(), top_logprobs.tobytes())


def join(parts: Sequence[LogprobColumns], num_top: int) -> LogprobColumns:
    """Returns the tokens of all parts, one after another, with `num_top` alternatives."""
    empty = LogprobColumns(b"", b"", num_top, b"", b"")
    return join_columns([empty, *(with_num_top(part, num_top) for part in parts)])


def unknown(num_tokens: int) -> LogprobColumns:
    """Returns columns that hold the places of tokens about which nothing is known."""
    return LogprobColumns(
        pack_int32([NO_TOKEN]) * num_tokens, array(FLOAT32, [math.nan] * num_tokens).tobytes(), 0, b"", b""
    )


def has_nan(columns: LogprobColumns) -> bool:
    """Tells whether a logprob is not a number, as where a row's logits are not finite."""
    return math.isnan(sum(memoryview(columns.logprobs).cast(FLOAT32)))


def of_delivered(
    num_logprobs: "array[int]", next_tokens: "array[int]", logprobs: LogprobColumns
) -> tuple[bytes, LogprobColumns | None]:
    """Returns which of a step's delivered tokens have logprobs (int32, ascending), and these.

    `num_logprobs` and `next_tokens` are aligned, and `logprobs` has an entry for each row that wants any. A row whose
    next token is NO_TOKEN delivers none, and the later ones move up.
    """
    if NO_TOKEN not in next_tokens:
        return pack_int32(row for row, count in enumerate(num_logprobs) if count >= 0), logprobs
    entries: array[int] = array(INT32)
    kept: list[LogprobColumns] = []
    num_delivered = num_known = 0
    for count, token_id in zip(num_logprobs, next_tokens, strict=True):
        if count >= 0:
            if token_id != NO_TOKEN:
                entries.append(num_delivered)
                kept.append(cut(logprobs, num_known, num_known + 1))
            num_known += 1
        num_delivered += token_id != NO_TOKEN
    return entries.tobytes(), join(kept, logprobs.num_top) if kept else None
