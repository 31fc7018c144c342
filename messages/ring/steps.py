"""One forward pass as plain values: the plan that goes into it and the tokens that come out.

Shape legend: R rows, T scheduled tokens of all rows together, S tokens after which a next one is sampled (several of a
row that verifies draft tokens), P pages a row (padded), Q prompt tokens whose logprobs are wanted, N tokens with
logprobs, K alternatives of each.
"""

from typing import Annotated, Literal

import msgspec

from messages.columns import FLOAT32, INT32, INT64, num_int32
from messages.ring.axes import Axis, Column
from messages.ring.requests import FramesLost

Phase = Literal["prefill", "decode", "mixed"]

ROW = Axis("row")
DECODE_ROW = Axis("decode row", ROW, leading="num_decode_rows")
TOKEN = Axis("token", ROW, counts="query_lens")
PAGE = Axis("page", ROW, width="num_pages_per_row")
SAMPLED = Axis("sampled token", TOKEN, indices="sample_tokens")
ALLOWED = Axis("sampled token that may only be one of some", SAMPLED, indices="allowed_rows")
ALLOWED_ID = Axis("allowed id", ALLOWED, counts="num_allowed")
MASKED = Axis("sampled token of a grammar", SAMPLED, indices="bitmask_rows")
MASK_WORD = Axis("word of a bitmask", MASKED, width="num_mask_words")
BIAS = Axis("bias", SAMPLED, indices="bias_rows")
PENALIZED = Axis("sampled token with a penalty", SAMPLED, indices="penalty_rows")
HISTORY_ID = Axis("history id", PENALIZED, counts="num_history")
PROMPT_LOGPROB = Axis("prompt token with a logprob", TOKEN, indices="token_indices")
WITH_LOGPROB = Axis("token with a logprob")
ALTERNATIVE = Axis("alternative", WITH_LOGPROB, width="num_top")

NO_TOKEN = -1
"""Stands where a row has no next token, because its logits were not finite."""


class LogitsProcessing(msgspec.Struct, frozen=True, array_like=True):
    """What changes logits before a token is chosen. A column that names rows holds indices into the S, ascending.

    They are applied in this order: allowed tokens, bitmasks of grammars, biases, penalties.
    """

    allowed_rows: Annotated[bytes, Column(INT32, ALLOWED)] = b""
    """Rows that may only choose some tokens."""
    num_allowed: Annotated[bytes, Column(INT32, ALLOWED)] = b""
    """How many of `allowed_ids` are the row's."""
    allowed_ids: Annotated[bytes, Column(INT32, ALLOWED_ID)] = b""
    bias_rows: Annotated[bytes, Column(INT32, BIAS)] = b""
    """One entry a bias; a row has as many as it needs."""
    bias_ids: Annotated[bytes, Column(INT32, BIAS)] = b""
    bias_values: Annotated[bytes, Column(FLOAT32, BIAS)] = b""
    """Added to the logit; -inf bans the token."""
    penalty_rows: Annotated[bytes, Column(INT32, PENALIZED)] = b""
    """Rows with a penalty."""
    repetition_penalties: Annotated[bytes, Column(FLOAT32, PENALIZED, fill=1.0, dummy=1.1)] = b""
    """Divides positive and multiplies negative logits of tokens that occurred."""
    frequency_penalties: Annotated[bytes, Column(FLOAT32, PENALIZED, dummy=0.1)] = b""
    """Subtracted for each occurrence in the output."""
    presence_penalties: Annotated[bytes, Column(FLOAT32, PENALIZED, dummy=0.1)] = b""
    """Subtracted where the token occurs in the output."""
    num_history: Annotated[bytes, Column(INT32, PENALIZED)] = b""
    """How many of `history_ids` are the row's, prompt and output."""
    num_history_prompt: Annotated[bytes, Column(INT32, PENALIZED)] = b""
    """How many of those, the first ones, are the prompt."""
    history_ids: Annotated[bytes, Column(INT32, HISTORY_ID)] = b""
    """The last one of a row whose token is in `Batch.future_token_indices` is 0 here, and filled in on the device."""
    bitmask_rows: Annotated[bytes, Column(INT32, MASKED)] = b""
    """Rows with a grammar."""
    bitmasks: Annotated[bytes, Column(INT32, MASK_WORD, fill=-1, dummy=-1)] = b""
    """What their grammars allow: bit b of a row's word w is that of token 32 * w + b."""
    num_mask_words: int = 0
    """Words of a row: as many as the vocabulary needs."""


class PromptLogprobTargets(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens whose logprobs are wanted: each is the successor of a token of this step."""

    token_indices: Annotated[bytes, Column(INT32, PROMPT_LOGPROB)]
    """Ascending: the token of the step (an index into T) before it."""
    target_ids: Annotated[bytes, Column(INT32, PROMPT_LOGPROB)]
    """The prompt tokens."""
    num_top: int
    """K: alternatives wanted with each."""


class LogprobColumns(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of N tokens under the model's own distribution (temperature 1, nothing filtered or processed)."""

    token_ids: Annotated[bytes, Column(INT32, WITH_LOGPROB)]
    logprobs: Annotated[bytes, Column(FLOAT32, WITH_LOGPROB)]
    num_top: int
    """K"""
    top_ids: Annotated[bytes, Column(INT32, ALTERNATIVE)]
    """[N, K], the likeliest first, of equal ones the smaller id."""
    top_logprobs: Annotated[bytes, Column(FLOAT32, ALTERNATIVE)]


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The plan of one step: enough to run it on another rank, or to run it again later.

    Rows are ordered: first `num_decode_rows` rows of one token each, then rows of any number: prefill chunks, and rows
    in decode with draft tokens (`num_drafts`). All columns are bytes.
    """

    step_id: int
    num_decode_rows: int
    uids: Annotated[bytes, Column(INT64, ROW)]
    query_lens: Annotated[bytes, Column(INT32, ROW, fill=1)]
    """Tokens of the row in this step, at least 1."""
    context_lens: Annotated[bytes, Column(INT32, ROW)]
    """Tokens of the row whose K and V are in the cache already."""
    token_ids: Annotated[bytes, Column(INT32, TOKEN)]
    """The rows one after another."""
    positions: Annotated[bytes, Column(INT32, TOKEN)]
    """Position of each token in its request, from 0."""
    slots: Annotated[bytes, Column(INT64, TOKEN, fill=-1)]
    """The slot where each token's K and V are written (page_id * page_size + offset)."""
    page_tables: Annotated[bytes, Column(INT32, PAGE, fill=-1)]
    """[R, P], padded with -1: the pages of each row, in order, those of this step included."""
    num_pages_per_row: int
    """P"""
    sample_tokens: Annotated[bytes, Column(INT32, SAMPLED)]
    """Indices into T, ascending: the tokens after which a next one is sampled. That is the row's last token and, where
    it has draft tokens, those and the one before them; none of a chunk that is not the prompt's last."""
    temperatures: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=1.0)]
    """0 for a greedy row."""
    top_ps: Annotated[bytes, Column(FLOAT32, SAMPLED, fill=1.0, dummy=0.9)]
    top_ks: Annotated[bytes, Column(INT32, SAMPLED)]
    """0 for all tokens."""
    min_ps: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=0.01)]
    seeds: Annotated[bytes, Column(INT64, SAMPLED)]
    sample_positions: Annotated[bytes, Column(INT64, SAMPLED)]
    """The position that the sampled token will have; with the seed it determines the noise."""
    logits_processing: LogitsProcessing | None = None
    """`None` where no row changes its logits."""
    num_logprobs: Annotated[bytes, Column(INT32, SAMPLED, fill=-1, dummy=20, is_optional=True)] = b""
    """Alternatives wanted with the row's token, -1 for no logprobs."""
    prompt_logprobs: PromptLogprobTargets | None = None
    """`None` where no prompt's logprobs are wanted."""
    future_token_indices: Annotated[bytes, Column(INT32, DECODE_ROW, fill=-1, is_optional=True)] = b""
    """Where the row's token is one that the step before samples, its index into that step's S; -1 where `token_ids`
    has it. A step with sources is planned before the one before it has ended."""

    num_drafts: Annotated[bytes, Column(INT32, ROW, is_optional=True)] = b""
    """How many of the row's tokens, the last ones, are draft tokens: proposed, and right only where they are what is
    sampled after the token before."""

    top_n_sigmas: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=1.0, is_optional=True)] = b""
    typical_ps: Annotated[bytes, Column(FLOAT32, SAMPLED, fill=1.0, dummy=0.9, is_optional=True)] = b""
    xtc_probabilities: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=0.5, is_optional=True)] = b""
    xtc_thresholds: Annotated[bytes, Column(FLOAT32, SAMPLED, fill=0.1, dummy=0.1, is_optional=True)] = b""

    @property
    def num_rows(self) -> int:
        return num_int32(self.query_lens)

    @property
    def num_tokens(self) -> int:
        return num_int32(self.token_ids)

    @property
    def num_sampled(self) -> int:
        return num_int32(self.sample_tokens)

    @property
    def hidden_tokens(self) -> bytes:
        """Indices into T (int32) of tokens whose hidden states are wanted for more than sampling, kind after kind."""
        return b"" if self.prompt_logprobs is None else self.prompt_logprobs.token_indices

    @property
    def phase(self) -> Phase:
        if not self.num_decode_rows:
            return "prefill"
        return "decode" if self.num_decode_rows == self.num_rows else "mixed"


class ForwardOutput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a step computed: int32 `next_tokens`, row after row.

    The last of a row may be NO_TOKEN: its logits were not finite, so the row must fail alone. `logprobs` are those of
    the tokens whose rows want any, in their order, with as many alternatives as the greediest of them wants;
    `prompt_logprobs` those of `Batch.prompt_logprobs`.
    """

    step_id: int
    next_tokens: bytes
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None
    num_tokens: bytes = b""
    """int32, an entry a row that samples: how many of `next_tokens` it got, at most as many as it sampled and, where no
    step is planned behind this one, perhaps none. Empty: one after each of `Batch.sample_tokens`."""

    @property
    def has_ended(self) -> bool:
        return True

    def result(self) -> "ForwardOutput":
        """Returns itself: of a step that is computed as it is launched, this is all that has to be waited for."""
        return self


class JoinRanks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → its ranks, once: load the model now, with me. What follows are steps, in the order in which all run
    them."""


ToRank = JoinRanks | Batch | FramesLost
