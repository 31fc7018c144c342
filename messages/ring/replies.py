"""Messages back to the client: token ids from the scheduler, text from the detokenizer.

The results of a step are sent as columns, in one message for the whole step.
"""

from typing import Literal

import msgspec

from messages.columns import Float32s, Int32s, Int64s
from messages.errors import ErrorInfo
from messages.ring.cache import CacheAnswer
from messages.ring.requests import DropBefore, FramesLost, Stamps
from messages.ring.steps import LogprobColumns
from messages.ring.timeline import ScheduleReport, Tokenized

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]

NUM_CONTEXT_TOKENS = 8
"""Prompt tokens that the detokenizer decodes before the output, whose text may depend on them."""


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of a request; `cached_tokens` of its prompt were in the prefix cache, `image_tokens` are images."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    image_tokens: int = 0


class OpenStream(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: announces a request whose tokens will follow. Sent when the scheduler receives it.

    For a continuation, the detokenizer decodes `output_ids` (int32) silently and resumes after `num_chars_sent`.
    `prompt_ids` (int32) are the last `NUM_CONTEXT_TOKENS` of the prompt, as context for the output. With `echo` or
    `num_prompt_logprobs` they are the whole prompt, which is returned in a `PromptReply`: at once, or together with
    its logprobs. `begins_in_thought` is returned there, too.
    """

    uid: int
    attempt: int
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    output_ids: Int32s = b""
    num_chars_sent: int = 0
    prompt_ids: Int32s = b""
    echo: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    min_tokens: int = 0
    """No stop string may end in the first `min_tokens` tokens of all attempts; it may begin there (as in vLLM)."""
    begins_in_thought: bool = False
    engine: int = 1
    """The number of the scheduler that sends it."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: logprobs of all prompt tokens except the first. Sent before the first output token.

    A logprob is NaN, and its alternatives mean nothing, if the position belongs to a span.
    """

    uid: int
    attempt: int
    logprobs: LogprobColumns


class PooledReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: the numbers that a `Pooling` requests, before the end of the request.

    `values` (float32) are `num_rows` vectors of equal length: one for each token of `token_embed`, otherwise one.
    """

    uid: int
    attempt: int
    values: Float32s
    num_rows: int = 1


class FinishedRow(msgspec.Struct, frozen=True, array_like=True):
    """How one request ended in the scheduler.

    `ended_by_token`: the last token is an end-of-sequence or stop token, which counts but whose text is not shown.
    `stop_reason`: the id of the stop token, if one of `stop_token_ids` ended it. `error`: set if the reason is "error".
    """

    uid: int
    attempt: int
    finish_reason: FinishReason
    usage: Usage
    stamps: Stamps
    ended_by_token: bool = False
    stop_reason: int | None = None
    error: ErrorInfo | None = None


class PrefilledRow(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of a request whose prompt has been computed, sent with the first token of an attempt."""

    uid: int
    attempt: int
    usage: Usage


class DetokenizeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: the output of one step.

    `uids` (int64) and `attempts` (int32) have one entry per row that got tokens; `token_ids` (int32) are its tokens,
    row after row. Rows that ended are in `finished`, even if they got no token (an abort in the queue).
    """

    step_id: int
    uids: Int64s
    attempts: Int32s
    token_ids: Int32s
    finished: tuple[FinishedRow, ...] = ()
    logprob_entries: Int32s = b""
    """int32, ascending: indices into `token_ids` of the tokens with logprobs."""
    logprobs: LogprobColumns | None = None
    prefilled: tuple[PrefilledRow, ...] = ()
    """Rows that got their first token after a prompt, including a prompt recomputed after preemption."""
    num_tokens: Int32s = b""
    """int32: number of tokens per row, at least 1; empty if each row got one."""
    committed_ns: int = 0
    """When the step's result was available; 0 if there was no step."""
    engine: int = 1
    """The number of the scheduler that ran the step; `step_id` counts that scheduler's steps."""
    num_draft_tokens: int = 0
    """The draft tokens of all rows, accepted or not: recordings contain the size of each step."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token as clients see it: its own text, its bytes (possibly part of a character) and its logprob.

    `logprob` is `None` for the first token of a prompt and for the positions of its spans.
    """

    token_id: int
    text: str
    utf8: bytes
    logprob: float | None


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token with its alternatives, the most likely first; the token may be one of them.

    `text_offset`: the number of characters before the first one that the token adds to its text (output or prompt).
    """

    token: TokenLogprob
    top: tuple[TokenLogprob, ...]
    text_offset: int


class PromptReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → frontend: the prompt's text, its int32 `token_ids` and, if requested, their logprobs.

    Without a request for the prompt, text and ids are empty. Sent before the first output token, and again for a
    continuation.
    """

    uid: int
    attempt: int
    text: str
    tokens: tuple[PositionLogprobs, ...] = ()
    token_ids: Int32s = b""
    begins_in_thought: bool = False
    """The prompt has opened the model's reasoning."""


class UserReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer (or tokenizer, for a rejected request) → frontend: the one final message of a request.

    Carries the last text increment and the last token ids (int32). `error` is set if the request was rejected or
    failed; then `finish_reason` is "error". `stop_reason` is the stop string or the id of the stop token that ended it.
    """

    uid: int
    attempt: int
    finish_reason: FinishReason
    incremental_output: str = ""
    token_ids: Int32s = b""
    usage: Usage = Usage()
    stamps: Stamps = Stamps()
    stop_reason: str | int | None = None
    error: ErrorInfo | None = None
    logprobs: tuple[PositionLogprobs, ...] = ()
    """Aligned with `token_ids`; empty if not requested."""


class StepReplies(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → frontend: the text of one step.

    `uids` (int64), `attempts` (int32) and `texts` (the increment, empty while characters are held back) have one entry
    per row that continues; `token_ids` (int32) are its tokens, row after row. Rows that ended are only in `finals`.
    """

    step_id: int
    uids: Int64s
    attempts: Int32s
    token_ids: Int32s
    texts: tuple[str, ...]
    finals: tuple[UserReply, ...] = ()
    logprob_entries: Int32s = b""
    """int32, ascending: indices into `token_ids` of the tokens with logprobs."""
    logprobs: tuple[PositionLogprobs, ...] = ()
    prefilled: tuple[PrefilledRow, ...] = ()
    """Only rows that continue: a final reply has its own usage."""
    num_tokens: Int32s = b""
    """int32: number of tokens per row, at least 1; empty if each row has one."""
    committed_ns: int = 0
    """As in `DetokenizeMsg`."""
    engine: int = 1


class CacheFlushed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: the result of `FlushCache`.

    `num_pages` cached pages were freed. If `num_requests` is not 0, those running requests prevented the flush.
    """

    uid: int
    num_pages: int
    num_requests: int = 0


class EncodeReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → frontend: int32 `token_ids` of an `EncodeMsg` and, if requested, each token's vocabulary entry."""

    uid: int
    token_ids: Int32s = b""
    token_strs: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    text: str = ""
    """The text that was encoded, if requested."""


class DecodeReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → frontend: the text of a `DecodeMsg`."""

    uid: int
    text: str = ""
    error: ErrorInfo | None = None


ToDetokenizer = (
    OpenStream
    | PromptLogprobs
    | PooledReply
    | DetokenizeMsg
    | DropBefore
    | CacheFlushed
    | FramesLost
    | ScheduleReport
    | CacheAnswer
)
FromRing = (
    UserReply
    | StepReplies
    | PromptReply
    | PooledReply
    | CacheFlushed
    | EncodeReply
    | DecodeReply
    | FramesLost
    | Tokenized
    | ScheduleReport
    | CacheAnswer
)
