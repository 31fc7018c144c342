"""One forward pass as plain values: its input, the plan of the step, and its output tokens.

Shape legend: R rows, T scheduled tokens of all rows, S tokens after which a next one is sampled (several per row that
verifies draft tokens), P pages per row (padded), Q prompt tokens with requested logprobs, N tokens with logprobs, K
alternatives of each.
"""

from itertools import chain
from typing import Annotated, Literal, get_args

import msgspec

from messages.columns import FLOAT32, INT32, INT64, num_int32, pack_int32, unpack_int32
from messages.ring.axes import Axis, Column
from messages.ring.pooling import PoolingWay
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
POOLED = Axis("pooled row", TOKEN, indices="first_tokens")
CARRIED = Axis("number of a carried vector", POOLED, counts="num_carried")
LABEL = Axis("label", POOLED, counts="num_labels")
WITH_LOGPROB = Axis("token with a logprob")
ALTERNATIVE = Axis("alternative", WITH_LOGPROB, width="num_top")
VECTOR = Axis("pooled vector")
VALUE = Axis("number of a pooled vector", VECTOR, counts="sizes")

PooledKind = Literal["embed", "token_embed", "classify", "labels", "part"]
POOLED_KINDS: tuple[PooledKind, ...] = get_args(PooledKind)
"""The result for a row, from its pooled hidden states; `part`: these states, as more tokens of the prompt follow."""

POOLING_WAYS: tuple[PoolingWay, ...] = get_args(PoolingWay)

NO_TOKEN = -1
"""The next token of a row whose logits were not finite."""


class LogitsProcessing(msgspec.Struct, frozen=True, array_like=True):
    """Changes to the logits before sampling. A column of rows holds ascending indices into S.

    They are applied in this order: allowed tokens, bitmasks of grammars, biases, penalties.
    """

    allowed_rows: Annotated[bytes, Column(INT32, ALLOWED)] = b""
    """Rows that may only sample some tokens."""
    num_allowed: Annotated[bytes, Column(INT32, ALLOWED)] = b""
    """Number of the row's entries in `allowed_ids`."""
    allowed_ids: Annotated[bytes, Column(INT32, ALLOWED_ID)] = b""
    bias_rows: Annotated[bytes, Column(INT32, BIAS)] = b""
    """One entry per bias; a row may have several."""
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
    """Subtracted if the token occurs in the output."""
    num_history: Annotated[bytes, Column(INT32, PENALIZED)] = b""
    """Number of the row's entries in `history_ids`, prompt and output."""
    num_history_prompt: Annotated[bytes, Column(INT32, PENALIZED)] = b""
    """How many of those belong to the prompt; they come first."""
    history_ids: Annotated[bytes, Column(INT32, HISTORY_ID)] = b""
    """The last id of a row in `Batch.future_token_indices` is 0 here and is filled in on the device."""
    bitmask_rows: Annotated[bytes, Column(INT32, MASKED)] = b""
    """Rows with a grammar."""
    bitmasks: Annotated[bytes, Column(INT32, MASK_WORD, fill=-1, dummy=-1)] = b""
    """Allowed tokens: bit b of a row's word w stands for token 32 * w + b."""
    num_mask_words: int = 0
    """Words per row, for the whole vocabulary."""


class PromptLogprobTargets(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens with requested logprobs: each follows a token of this step."""

    token_indices: Annotated[bytes, Column(INT32, PROMPT_LOGPROB)]
    """Ascending: the index into T of the token before it."""
    target_ids: Annotated[bytes, Column(INT32, PROMPT_LOGPROB)]
    """The prompt tokens."""
    num_top: int
    """K: the number of alternatives for each."""


class PooledRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows whose hidden states are pooled, in the order of the rows.

    `num_tokens` tokens of the row are pooled in this step, from the one with index `first_tokens` on, and `num_before`
    were in earlier steps: their sum or maximum, as this step's predecessor returned it, is in `carried`.
    """

    first_tokens: Annotated[bytes, Column(INT32, POOLED)]
    """Ascending indices into T."""
    num_tokens: Annotated[bytes, Column(INT32, POOLED)]
    num_before: Annotated[bytes, Column(INT32, POOLED)]
    kinds: Annotated[bytes, Column(INT32, POOLED)]
    """Indices into `POOLED_KINDS`."""
    ways: Annotated[bytes, Column(INT32, POOLED)]
    """Indices into `POOLING_WAYS`."""
    dimensions: Annotated[bytes, Column(INT32, POOLED)]
    """How many numbers of a vector are returned, 0 for all."""
    normalizes: Annotated[bytes, Column(INT32, POOLED)]
    """1 or 0."""
    second_starts: Annotated[bytes, Column(INT32, POOLED)]
    """The position of the row at which its second text starts, 0 if it has none."""
    num_carried: Annotated[bytes, Column(INT32, POOLED)]
    num_labels: Annotated[bytes, Column(INT32, POOLED)]
    carried: Annotated[bytes, Column(FLOAT32, CARRIED)]
    label_ids: Annotated[bytes, Column(INT32, LABEL)]

    @property
    def spans(self) -> list[range]:
        """The pooled tokens of each row, as indices into T."""
        columns = unpack_int32(self.first_tokens), unpack_int32(self.num_tokens)
        return [range(first, first + count) for first, count in zip(*columns, strict=True)]


class PooledColumns(msgspec.Struct, frozen=True, array_like=True):
    """Vectors of pooled rows: one for each row, or one for each token of it."""

    sizes: Annotated[bytes, Column(INT32, VECTOR)]
    """Numbers in each vector."""
    num_tokens: Annotated[bytes, Column(INT32, VECTOR)]
    """Tokens of this step that each vector is made of."""
    values: Annotated[bytes, Column(FLOAT32, VALUE)]


class LogprobColumns(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of N tokens under the model's own distribution (temperature 1, nothing filtered or processed)."""

    token_ids: Annotated[bytes, Column(INT32, WITH_LOGPROB)]
    logprobs: Annotated[bytes, Column(FLOAT32, WITH_LOGPROB)]
    num_top: int
    """K"""
    top_ids: Annotated[bytes, Column(INT32, ALTERNATIVE)]
    """[N, K], the most likely first; ties are broken by the smaller id."""
    top_logprobs: Annotated[bytes, Column(FLOAT32, ALTERNATIVE)]


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The plan of one step, sufficient to run it on another rank or to run it again later.

    The first `num_decode_rows` rows have one token each. The other rows may have any number of tokens: prefill chunks,
    and decode rows with draft tokens (`num_drafts`). All columns are bytes.
    """

    step_id: int
    num_decode_rows: int
    uids: Annotated[bytes, Column(INT64, ROW)]
    query_lens: Annotated[bytes, Column(INT32, ROW, fill=1)]
    """Number of the row's tokens in this step, at least 1."""
    context_lens: Annotated[bytes, Column(INT32, ROW)]
    """Number of the row's tokens whose K and V are already in the cache."""
    token_ids: Annotated[bytes, Column(INT32, TOKEN)]
    """Row after row."""
    positions: Annotated[bytes, Column(INT32, TOKEN)]
    """Position of each token in its request, counted from 0."""
    slots: Annotated[bytes, Column(INT64, TOKEN, fill=-1)]
    """The slot into which each token's K and V are written (page_id * page_size + offset)."""
    page_tables: Annotated[bytes, Column(INT32, PAGE, fill=-1)]
    """[R, P], padded with -1: the pages of each row in order, including those of this step."""
    num_pages_per_row: int
    """P"""
    sample_tokens: Annotated[bytes, Column(INT32, SAMPLED)]
    """Ascending indices into T of the tokens after which a next one is sampled: the row's last token, its draft tokens
    and the token before them. A prefill chunk that is not the prompt's last has none."""
    temperatures: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=1.0)]
    """0 for a greedy row."""
    top_ps: Annotated[bytes, Column(FLOAT32, SAMPLED, fill=1.0, dummy=0.9)]
    top_ks: Annotated[bytes, Column(INT32, SAMPLED)]
    """0 for all tokens."""
    min_ps: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=0.01)]
    seeds: Annotated[bytes, Column(INT64, SAMPLED)]
    sample_positions: Annotated[bytes, Column(INT64, SAMPLED)]
    """The position of the sampled token; with the seed it determines the noise."""
    logits_processing: LogitsProcessing | None = None
    """`None` if no row changes its logits."""
    num_logprobs: Annotated[bytes, Column(INT32, SAMPLED, fill=-1, dummy=20, is_optional=True)] = b""
    """Number of alternatives for the row's token, -1 for no logprobs."""
    prompt_logprobs: PromptLogprobTargets | None = None
    """`None` if no prompt logprobs are requested."""
    future_token_indices: Annotated[bytes, Column(INT32, DECODE_ROW, fill=-1, is_optional=True)] = b""
    """For a token that the previous step samples, its index into that step's S; -1 for a token in `token_ids`. A step
    with such tokens is planned before the previous one has ended."""

    num_drafts: Annotated[bytes, Column(INT32, ROW, is_optional=True)] = b""
    """How many of the row's last tokens are draft tokens. A draft token is accepted if it is the token sampled after
    the one before it."""

    top_n_sigmas: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=1.0, is_optional=True)] = b""
    typical_ps: Annotated[bytes, Column(FLOAT32, SAMPLED, fill=1.0, dummy=0.9, is_optional=True)] = b""
    xtc_probabilities: Annotated[bytes, Column(FLOAT32, SAMPLED, dummy=0.5, is_optional=True)] = b""
    xtc_thresholds: Annotated[bytes, Column(FLOAT32, SAMPLED, fill=0.1, dummy=0.1, is_optional=True)] = b""
    window_slots: Annotated[bytes, Column(INT64, TOKEN, fill=-1, is_optional=True)] = b""
    """As `slots`, for windowed layers, whose pages have numbers of their own. Empty if they have not."""
    window_page_tables: Annotated[bytes, Column(INT32, PAGE, fill=-1, is_optional=True)] = b""
    """As `page_tables`, for windowed layers: also -1 before a row's window."""
    state_sources: Annotated[bytes, Column(INT32, ROW, fill=-1, is_optional=True)] = b""
    """The slot with the recurrent state before the row's first token; -1 if no token is before it."""
    state_slots: Annotated[bytes, Column(INT32, TOKEN, fill=-1, is_optional=True)] = b""
    """The slot that takes the recurrent state after each token; -1 if it is not stored. These slots are not those of K
    and V. Each row stores at least one, so the column is only empty if the model has no recurrent layers."""
    hidden_slots: Annotated[bytes, Column(INT64, TOKEN, fill=-1, is_optional=True)] = b""
    """Only in steps of a head of multi-token prediction: the slot that takes the head's hidden state after each token;
    -1 if it is not stored. `positions`, `context_lens` and `slots` are then those of the token before."""
    adapter_slots: Annotated[bytes, Column(INT32, ROW, fill=-1, is_optional=True)] = b""
    """The slot with the row's LoRA adapter, -1 for none."""
    pooled: PooledRows | None = None
    """`None` if no row is pooled."""
    placed_rows: Annotated[bytes, Column(INT32, TOKEN, fill=-1, dummy=-1, is_optional=True)] = b""
    """Which row of the buffer of placed rows replaces the token's embedding, -1 for none."""
    rope_positions: Annotated[bytes, Column(INT32, TOKEN, is_optional=True)] = b""
    """The position by which each token's queries and keys are rotated; for a token of an image, its place in time.
    Empty if these are `positions`: an image takes fewer of them than it has tokens (`PromptSpan.num_lines`)."""
    line_positions: Annotated[bytes, Column(INT32, TOKEN, is_optional=True)] = b""
    """The same in the lines of an image; for other tokens, `rope_positions`. Empty in a step without such images."""
    column_positions: Annotated[bytes, Column(INT32, TOKEN, is_optional=True)] = b""
    last_keys: Annotated[bytes, Column(INT32, TOKEN, is_optional=True)] = b""
    """The position of the last token that each token attends to, in layers in which those of a span see each other
    (`PromptSpan.is_two_way`). Empty if that is itself for all."""

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
        """Indices into T (int32) of tokens whose hidden states are needed for more than sampling, kind after kind."""
        of_logprobs = b"" if self.prompt_logprobs is None else self.prompt_logprobs.token_indices
        return of_logprobs if self.pooled is None else of_logprobs + pack_int32(chain.from_iterable(self.pooled.spans))

    @property
    def phase(self) -> Phase:
        if not self.num_decode_rows:
            return "prefill"
        return "decode" if self.num_decode_rows == self.num_rows else "mixed"


class ForwardOutput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The result of a step: int32 `next_tokens`, row after row.

    A row's last token may be NO_TOKEN: its logits were not finite, so this row alone must fail. `logprobs` has the
    tokens of the rows that requested logprobs, in their order, with the largest requested number of alternatives.
    `prompt_logprobs` are those of `Batch.prompt_logprobs`.
    """

    step_id: int
    next_tokens: bytes
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None
    num_tokens: bytes = b""
    """int32, one entry per row that samples: how many of `next_tokens` it got. That is at most the number it sampled,
    and may be 0 if no step is planned after this one. Empty: one after each of `Batch.sample_tokens`."""
    pooled: PooledColumns | None = None
    """The vectors of `Batch.pooled`."""

    @property
    def has_ended(self) -> bool:
        return True

    def result(self) -> "ForwardOutput":
        """Returns itself: a step that is computed when it is launched has nothing to wait for."""
        return self


class JoinRanks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → its ranks, once: load the model now, together with the scheduler. Only steps follow, which all ranks
    run in the same order."""


ToRank = JoinRanks | Batch | FramesLost
