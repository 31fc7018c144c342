"""Errors as clients of Anthropic's API read them."""

from typing import Literal

import msgspec

from frontend.errors import ErrorForm
from messages.errors import ErrorInfo

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""By status; others are `invalid_request_error` below 500, and `api_error`."""


class AnthropicErrorFields(msgspec.Struct, frozen=True):
    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True):
    error: AnthropicErrorFields
    type: Literal["error"] = "error"


def anthropic_error(info: ErrorInfo) -> AnthropicError:
    kind = TYPES.get(info.status, "invalid_request_error" if info.status < 500 else "api_error")
    return AnthropicError(AnthropicErrorFields(kind, info.message))


ANTHROPIC_ERRORS = ErrorForm(AnthropicError, anthropic_error)
