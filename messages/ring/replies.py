"""What goes back to the client: token ids from the scheduler, text from the detokenizer.

What one step produced crosses as columns, one message for the whole step.
"""

from typing import Literal

import msgspec

from messages.columns import Int32s, Int64s
from messages.errors import ErrorInfo
from messages.ring.cache import CacheAnswer
from messages.ring.peers import PeerAnswer, PeerAsk
from messages.ring.requests import DropBefore, FramesLost, Stamps
from messages.ring.steps import LogprobColumns
from messages.ring.timeline import ScheduleReport, Tokenized

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]

NUM_CONTEXT_TOKENS = 8
"""Tokens of the prompt that the detokenizer reads before the output: what a token looks like may depend on them."""

NUM_PROMPT_END_TOKENS = 64
"""Tokens of the prompt whose text a request with `wants_prompt_end` gets."""


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of a request; `cached_tokens` of the prompt were found in the prefix cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class OpenStream(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: tokens of this request will follow. Sent as soon as the scheduler takes the request.

    For a continuation the detokenizer decodes `output_ids` (int32) silently and goes on after `num_chars_sent`.
    `prompt_ids` (int32) are the last `NUM_CONTEXT_TOKENS` of the prompt, after which the output is read, or with `echo`
    or `num_prompt_logprobs` the whole prompt. That is told in a `PromptReply`: at once, or when its logprobs have come.
    With `tells_prompt_end` they are the last `NUM_PROMPT_END_TOKENS` at least, and their text is told as well.
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
    """Tokens over all attempts in whose text no stop string ends; one may begin there and end later (as in vLLM)."""
    tells_prompt_end: bool = False
    engine: int = 1
    """The number of the scheduler that says so."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: the logprobs of all prompt tokens but the first, before the first output token."""

    uid: int
    attempt: int
    logprobs: LogprobColumns


class FinishedRow(msgspec.Struct, frozen=True, array_like=True):
    """The end of one request, as the scheduler sees it.

    `ended_by_token`: the last token is an end-of-sequence or stop token, so it counts but its text is not shown.
    `stop_reason`: the stop token's id where one of `stop_token_ids` ended it. `error`: set where the reason is "error".
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
    """The prompt of one request has been computed: what it took, told with the first token of an attempt."""

    uid: int
    attempt: int
    usage: Usage


class DetokenizeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: what one step produced.

    `uids` (int64) and `attempts` (int32) have an entry a row that got tokens; `token_ids` (int32) are these, row after
    row. A row that ended is in `finished`, also when it got no token (an abort in the queue).
    """

    step_id: int
    uids: Int64s
    attempts: Int32s
    token_ids: Int32s
    finished: tuple[FinishedRow, ...] = ()
    logprob_entries: Int32s = b""
    """int32, ascending: which of `token_ids` have logprobs."""
    logprobs: LogprobColumns | None = None
    prefilled: tuple[PrefilledRow, ...] = ()
    """Of rows whose first token comes after a prompt; after a preemption it is told again."""
    num_tokens: Int32s = b""
    """int32: how many tokens each row got, at least 1; empty where each got one."""
    committed_ns: int = 0
    """When the result of the step was there; 0 where there is none."""
    engine: int = 1
    """The number of the scheduler whose step it was; `step_id` counts its own steps."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token as clients see it: its text by itself, its bytes (a part of a character too), its logprob.

    `logprob` is `None` for the first token of a prompt.
    """

    token_id: int
    text: str
    utf8: bytes
    logprob: float | None


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token with its alternatives, the likeliest first; it may be one of them.

    `text_offset`: how many characters come before the first one that the token adds, in the text of the output or of
    the prompt, whichever the token belongs to.
    """

    token: TokenLogprob
    top: tuple[TokenLogprob, ...]
    text_offset: int


class PromptReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → frontend: the prompt's text, its int32 `token_ids` and, where they are wanted, their logprobs.

    Where only the prompt's end is wanted, `text` is that, and there are no ids. It comes before the first output token;
    a continuation sends it again.
    """

    uid: int
    attempt: int
    text: str
    tokens: tuple[PositionLogprobs, ...] = ()
    token_ids: Int32s = b""


class UserReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer (or a refusing tokenizer) → frontend: the one final message of a request.

    Carries the last text increment and the last token ids (int32). `error` is set for a refusal or a failure; then
    `finish_reason` is "error". `stop_reason` is the stop string or stop token id that ended it.
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
    """Aligned with `token_ids`; empty where none are wanted."""


class StepReplies(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → frontend: the text of one step.

    `uids` (int64), `attempts` (int32) and `texts` (the increment, empty while characters are held back) have an entry a
    row that goes on; `token_ids` (int32) are the tokens, row after row. Rows that ended are in `finals` alone.
    """

    step_id: int
    uids: Int64s
    attempts: Int32s
    token_ids: Int32s
    texts: tuple[str, ...]
    finals: tuple[UserReply, ...] = ()
    logprob_entries: Int32s = b""
    """int32, ascending: which of `token_ids` have logprobs."""
    logprobs: tuple[PositionLogprobs, ...] = ()
    prefilled: tuple[PrefilledRow, ...] = ()
    """Of rows that go on: a final has its own usage."""
    num_tokens: Int32s = b""
    """int32: how many tokens each row has, at least 1; empty where each has one."""
    committed_ns: int = 0
    """As in `DetokenizeMsg`."""
    engine: int = 1


class CacheFlushed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: what became of `FlushCache`.

    `num_pages` are free now that were cached; with `num_requests` in the way nothing was done.
    """

    uid: int
    num_pages: int
    num_requests: int = 0


class EncodeReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → frontend: int32 `token_ids` of an `EncodeMsg` and, if wanted, each token as the vocabulary has it."""

    uid: int
    token_ids: Int32s = b""
    token_strs: tuple[str, ...] = ()
    error: ErrorInfo | None = None


class DecodeReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → frontend: the text of a `DecodeMsg`."""

    uid: int
    text: str = ""
    error: ErrorInfo | None = None


ToDetokenizer = (
    OpenStream | PromptLogprobs | DetokenizeMsg | DropBefore | CacheFlushed | FramesLost | ScheduleReport | CacheAnswer
)
FromRing = (
    UserReply
    | StepReplies
    | PromptReply
    | CacheFlushed
    | EncodeReply
    | DecodeReply
    | FramesLost
    | Tokenized
    | ScheduleReport
    | CacheAnswer
)
ToFrontend = FromRing | PeerAsk | PeerAnswer
