"""One forward pass as plain values: the plan that goes into it and the tokens that come out.

Shape legend: R rows, T scheduled tokens of all rows together, S rows that sample a token, P pages a row (padded),
Q prompt tokens whose logprobs are wanted, N tokens with logprobs, K alternatives of each.
"""

from typing import Literal

import msgspec

Phase = Literal["prefill", "decode", "mixed"]


class LogitEdits(msgspec.Struct, frozen=True, array_like=True):
    """What changes logits before a token is chosen. A column that names rows holds indices into the S rows, ascending.

    They are applied in this order: allowed tokens, biases, penalties.
    """

    allowed_rows: bytes = b""
    """int32: rows that may only choose some tokens."""
    num_allowed: bytes = b""
    """int32, aligned with `allowed_rows`: how many of `allowed_ids` are the row's."""
    allowed_ids: bytes = b""
    """int32, the rows one after another."""
    bias_rows: bytes = b""
    """int32, one entry a bias; a row has as many as it needs."""
    bias_ids: bytes = b""
    """int32"""
    bias_values: bytes = b""
    """float32, added to the logit; -inf bans the token."""
    penalty_rows: bytes = b""
    """int32: rows with a penalty."""
    repetition_penalties: bytes = b""
    """float32, aligned with `penalty_rows`: divides positive and multiplies negative logits of tokens that occurred."""
    frequency_penalties: bytes = b""
    """float32: subtracted for each occurrence in the output."""
    presence_penalties: bytes = b""
    """float32: subtracted where the token occurs in the output."""
    num_history: bytes = b""
    """int32, aligned with `penalty_rows`: how many of `history_ids` are the row's, prompt and output."""
    num_history_prompt: bytes = b""
    """int32: how many of those, the first ones, are the prompt."""
    history_ids: bytes = b""
    """int32, the rows one after another."""


class ScoredTokens(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens whose logprobs are wanted: each is the successor of a token of this step."""

    token_indices: bytes
    """int32 [Q], ascending: the token of the step (an index into T) after which the scored one comes."""
    target_ids: bytes
    """int32 [Q]: the scored tokens."""
    num_top: int
    """K: alternatives wanted with each."""


class LogprobColumns(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of N tokens under the model's own distribution (temperature 1, nothing filtered or edited)."""

    token_ids: bytes
    """int32 [N]"""
    logprobs: bytes
    """float32 [N]"""
    num_top: int
    """K"""
    top_ids: bytes
    """int32 [N, K], the likeliest first, of equal ones the smaller id."""
    top_logprobs: bytes
    """float32 [N, K]"""


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
    edits: LogitEdits | None = None
    """`None` where no row changes its logits."""
    num_logprobs: bytes = b""
    """int32 [S]: alternatives wanted with the row's token, -1 for no logprobs; empty where no row wants any."""
    scored: ScoredTokens | None = None
    """`None` where no prompt's logprobs are wanted."""
    token_sources: bytes = b""
    """int32 [num_decode_rows]: where the row's token is one that the step before samples, its index into that step's
    S; -1 where `token_ids` has it. Empty: `token_ids` has all. A step with sources is planned before the one before it
    has ended."""


class ForwardOutput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a step computed: int32 `next_tokens` [S], aligned with `Batch.sample_rows`.

    -1: the row's logits were not finite, so it has no next token and must fail alone. `logprobs` are those of the rows
    that want any, in their order, with as many alternatives as the greediest of them wants; `prompt_logprobs` those of
    `Batch.scored`.
    """

    step_id: int
    next_tokens: bytes
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None

    def result(self) -> "ForwardOutput":
        """Returns itself: of a step that is computed as it is launched, this is all that has to be waited for."""
        return self
