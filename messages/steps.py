"""One forward pass as plain values: the plan that goes into it and the tokens that come out.

Shape legend: R rows, T scheduled tokens of all rows together, S rows that sample a token, P pages a row (padded).
"""

from typing import Literal

import msgspec

Phase = Literal["prefill", "decode", "mixed"]


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The plan of one step: enough to run it on another rank, or to run it again later.

    Rows are ordered: first `num_decode_rows` rows of one token each, then the prefill chunks. All columns are bytes.
    """

    step_id: int
    phase: Phase
    num_decode_rows: int
    uids: bytes
    """int64 [R]"""
    query_lens: bytes
    """int32 [R]: tokens of the row in this step, at least 1."""
    context_lens: bytes
    """int32 [R]: tokens of the row whose K and V are in the cache already."""
    token_ids: bytes
    """int32 [T], the rows one after another."""
    positions: bytes
    """int32 [T]: position of each token in its request, from 0."""
    slots: bytes
    """int64 [T]: the slot where each token's K and V are written (page_id * page_size + offset)."""
    page_tables: bytes
    """int32 [R, P], padded with -1: the pages of each row, in order, those of this step included."""
    num_pages_per_row: int
    """P"""
    sample_rows: bytes
    """int32 [S]: rows (ascending) whose last token yields a next token (no unfinished prompts)."""
    temperatures: bytes
    """float32 [S], 0 for a greedy row."""
    top_ps: bytes
    """float32 [S]"""
    top_ks: bytes
    """int32 [S], 0 for all tokens."""
    min_ps: bytes
    """float32 [S]"""
    seeds: bytes
    """int64 [S]"""
    sample_positions: bytes
    """int64 [S]: the position that the sampled token will have; with the seed it determines the noise."""


class ForwardOutput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a step computed: int32 `next_tokens` [S], aligned with `Batch.sample_rows`.

    -1: the row's logits were not finite, so it has no next token and must fail alone.
    """

    step_id: int
    next_tokens: bytes
