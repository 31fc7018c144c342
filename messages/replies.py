"""What goes back to the client: token ids from the scheduler, text from the detokenizer.

What one step produced crosses as columns, one message for the whole step.
"""

from typing import Literal

import msgspec

from messages.errors import ErrorInfo
from messages.requests import DropBefore, Stamps

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of a request; `cached_tokens` of the prompt were found in the prefix cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class OpenStream(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: tokens of this request will follow. Sent as soon as the scheduler takes the request.

    For a continuation the detokenizer decodes `output_ids` (int32) silently and goes on after `num_chars_sent`.
    """

    uid: int
    attempt: int
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    output_ids: bytes = b""
    num_chars_sent: int = 0


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


class DetokenizeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer: what one step produced.

    `uids` (int64), `attempts` (int32) and `token_ids` (int32) are columns of equal length, one entry a row that got a
    token. A row that ended is in `finished`, also when it got no token (an abort in the queue).
    """

    step_id: int
    uids: bytes
    attempts: bytes
    token_ids: bytes
    finished: tuple[FinishedRow, ...] = ()


class UserReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer (or a refusing tokenizer) → frontend: the one final message of a request.

    Carries the last text increment and the last token ids (int32). `error` is set for a refusal or a failure; then
    `finish_reason` is "error". `stop_reason` is the stop string or stop token id that ended it.
    """

    uid: int
    attempt: int
    finish_reason: FinishReason
    incremental_output: str = ""
    token_ids: bytes = b""
    usage: Usage = Usage()
    stamps: Stamps = Stamps()
    stop_reason: str | int | None = None
    error: ErrorInfo | None = None


class StepReplies(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → frontend: the text of one step.

    Columns of equal length for the rows that go on: `uids` (int64), `attempts` (int32), `token_ids` (int32) and `texts`
    (the increment, empty while characters are held back). Rows that ended are in `finals` and not in the columns.
    """

    step_id: int
    uids: bytes
    attempts: bytes
    token_ids: bytes
    texts: tuple[str, ...]
    finals: tuple[UserReply, ...] = ()


ToDetokenizer = OpenStream | DetokenizeMsg | DropBefore
ToFrontend = UserReply | StepReplies
