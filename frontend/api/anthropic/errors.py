"""Errors in the format of Anthropic's API."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.errors import ErrorForm
from messages.errors import ErrorInfo

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""By status. Others are `invalid_request_error` below 500, and `api_error` from 500 on."""


class ErrorDetails(msgspec.Struct, frozen=True):
    error_code: str
    unsupported: tuple[str, ...] = ()


THREAD = "thread"
"""A field that asks the server to store the conversation."""

NO_THREADS = ErrorDetails("thread_unsupported_request")
"""On this error, clients resend the whole conversation without the field: their tool loops start with it."""


class AnthropicErrorFields(msgspec.Struct, frozen=True):
    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class AnthropicError(msgspec.Struct, frozen=True):
    error: AnthropicErrorFields
    type: Literal["error"] = "error"


def anthropic_error(info: ErrorInfo) -> AnthropicError:
    kind = TYPES.get(info.status, "invalid_request_error" if info.status < 500 else "api_error")
    message = info.message
    if info.too_long is not None:  # agents recognise this wording and then shorten the conversation
        num_tokens, limit = info.too_long
        message = f"prompt is too long: {num_tokens} tokens > {limit} maximum"
    return AnthropicError(AnthropicErrorFields(kind, message, NO_THREADS if info.param == THREAD else UNSET))


ANTHROPIC_ERRORS = ErrorForm(AnthropicError, anthropic_error)
