"""Planned steps in another form: with tokens that the plan lacked, or with every token as a decode row."""

from collections.abc import Sequence
from typing import Any

import msgspec

from messages.columns import pack_int32, unpack_int32
from messages.ring.axes import columns_of
from messages.ring.steps import PAGE, ROW, Batch
from scheduler_proc.computing.step.features.registry import FEATURES

OWN = {"query_lens", "context_lens", "num_drafts"}
"""The columns of rows that are others where each token is a row."""

REPEATED = [name for name, column in columns_of(Batch).items() if column.axis in (ROW, PAGE) and name not in OWN]


def with_known_tokens(batch: Batch, next_tokens: bytes) -> Batch:
    """Returns the step with the tokens that it lacks; `next_tokens` (int32) are the previous step's.

    A row that got none becomes token 0, as in `take_tokens`.
    """
    token_ids, known = unpack_int32(batch.token_ids), unpack_int32(next_tokens)
    for row, source in enumerate(unpack_int32(batch.future_token_indices)):
        if source >= 0:
            token_ids[row] = max(0, known[source])
    return msgspec.structs.replace(batch, token_ids=token_ids.tobytes(), future_token_indices=b"")


def as_decode_rows(batch: Batch) -> Batch:
    """Returns the step with every token as a decode row: a token of a longer row reads the row's pages up to itself.

    K and V of all tokens are stored before any is read. Only for a step in which each token yields a next one.
    """
    num_tokens = batch.num_tokens
    if batch.num_decode_rows == num_tokens:
        return batch
    counts = unpack_int32(batch.query_lens)
    columns: dict[str, Any] = {name: _repeat(column, counts) for name in REPEATED if (column := getattr(batch, name))}
    for feature in FEATURES:
        columns |= feature.as_decode_rows(batch, counts)
    own = {"query_lens": pack_int32([1]) * num_tokens, "context_lens": batch.positions, "num_drafts": b""}
    return msgspec.structs.replace(batch, num_decode_rows=num_tokens, **columns, **own)


def _repeat(column: bytes, counts: Sequence[int]) -> bytes:
    """Returns each row's part of a column, repeated `count` times: for few rows this is faster than numpy."""
    size = len(column) // len(counts)
    return b"".join([column[row * size : (row + 1) * size] * count for row, count in enumerate(counts)])
