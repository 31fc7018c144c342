"""Planned steps in another form: with tokens that the plan lacked, or with every token as a decode row."""

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from messages.columns import pack_int32, unpack_int32
from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import read_state_sources


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
    return msgspec.structs.replace(
        batch,
        num_decode_rows=num_tokens,
        uids=_repeat(batch.uids, counts),
        query_lens=pack_int32([1]) * num_tokens,
        context_lens=batch.positions,
        page_tables=_repeat(batch.page_tables, counts),
        window_page_tables=_repeat(batch.window_page_tables, counts),
        num_drafts=b"",
        state_sources=_chain_sources(batch, counts),
        adapter_slots=_repeat(batch.adapter_slots, counts),
    )


def _chain_sources(batch: Batch, counts: Sequence[int]) -> bytes:
    """Returns the slot with the state before each token: the row's source, then the slot of the token before it."""
    if not batch.state_slots:
        return b""
    slots, starts = unpack_int32(batch.state_slots), accumulate(counts, initial=0)
    chained = [-1, *slots[:-1]]
    for start, source in zip(starts, unpack_int32(read_state_sources(batch)), strict=False):
        chained[start] = source
    return pack_int32(chained)


def _repeat(column: bytes, counts: Sequence[int]) -> bytes:
    """Returns each row's part of a column, repeated `count` times: for few rows this is faster than numpy."""
    size = len(column) // len(counts)
    return b"".join([column[row * size : (row + 1) * size] * count for row, count in enumerate(counts)])
