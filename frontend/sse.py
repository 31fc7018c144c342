"""The bytes of a `/generate` event stream: one pure function for each kind of event."""

import msgspec

from frontend.errors import error_body
from frontend.timing import Timing
from messages.errors import ErrorInfo
from messages.replies import FinishReason, Usage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_encoder = msgspec.json.Encoder()


class UsageFields(msgspec.Struct, frozen=True):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class TokensEvent(msgspec.Struct, frozen=True):
    """The tokens of one or more steps; `finish_reason` is null until the end."""

    uid: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None


class EndEvent(msgspec.Struct, frozen=True):
    """The last tokens and how it ended; not streamed, it is the whole reply."""

    uid: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: UsageFields
    timing: Timing


def frame(event: msgspec.Struct) -> bytes:
    """Returns the event as `data: {json}` and an empty line."""
    return b"data: %b\n\n" % _encoder.encode(event)


def tokens_frame(uid: int, text: str, token_ids: list[int]) -> bytes:
    """Returns the frame of one increment: a row of `StepReplies`, or several that waited for a slow reader."""
    return frame(TokensEvent(uid, text, token_ids))


def error_frame(info: ErrorInfo) -> bytes:
    """Returns the frame that ends a stream which has begun and cannot go on; `DONE` follows it."""
    return frame(error_body(info))


def usage_fields(usage: Usage) -> UsageFields:
    return UsageFields(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
