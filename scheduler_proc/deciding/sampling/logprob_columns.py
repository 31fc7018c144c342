"""Slices and joins columns of logprobs."""

import math
from array import array
from collections.abc import Iterable, Sequence

from messages.columns import FLOAT32, INT32, num_int32
from messages.ring.axes import join_columns, slice_columns
from messages.ring.steps import NO_TOKEN, WITH_LOGPROB, LogprobColumns


def cut(columns: LogprobColumns, start: int, stop: int) -> LogprobColumns:
    """Returns the tokens `start` to `stop` (exclusive)."""
    return slice_columns(columns, WITH_LOGPROB, start, stop)


def with_num_top(columns: LogprobColumns, num_top: int) -> LogprobColumns:
    """Returns the same tokens with `num_top` alternatives, padded with NO_TOKEN and -inf."""
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
    """Concatenates the tokens of all parts, with `num_top` alternatives."""
    empty = LogprobColumns(b"", b"", num_top, b"", b"")
    return join_columns([empty, *(with_num_top(part, num_top) for part in parts)])


def join_known(parts: Sequence[LogprobColumns | None]) -> LogprobColumns | None:
    """Concatenates the parts that are not `None`, with the largest number of alternatives among them."""
    known = [part for part in parts if part is not None]
    return join(known, max(part.num_top for part in known)) if known else None


def has_nan(columns: LogprobColumns) -> bool:
    """True if a logprob is NaN, which means that the logits of its row are not finite."""
    return math.isnan(sum(memoryview(columns.logprobs).cast(FLOAT32)))


def without_logprobs(columns: LogprobColumns, ranges: Iterable[range]) -> LogprobColumns:
    """Returns the same tokens; those in `ranges` have a logprob of NaN."""
    logprobs = array(FLOAT32, columns.logprobs)
    for span in ranges:
        logprobs[span.start : span.stop] = array(FLOAT32, [math.nan]) * len(span)
    alternatives = columns.num_top, columns.top_ids, columns.top_logprobs
    return LogprobColumns(columns.token_ids, logprobs.tobytes(), *alternatives)
