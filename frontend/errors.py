"""Errors as clients see them: their JSON bodies, and refusals with a time to retry."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException

from messages.errors import ErrorInfo, RequestError, cut

RETRY_S = 5
"""`Retry-After` if there is no better estimate: while processes start, restart or stop."""

ENDING_CODES = frozenset({"draining", "shutting_down"})
"""Codes of a server that is about to end; the connection is closed after the reply."""


VERSION = "/v1"
"""The prefix of the paths in OpenAI's and Anthropic's APIs."""


class RetryError(RequestError):
    """Asks the client to retry after `retry_after_s` seconds; `headers` say more."""

    headers: Sequence[tuple[bytes, bytes]] = ()

    def __init__(self, info: ErrorInfo, retry_after_s: int = RETRY_S):
        super().__init__(info)
        self.retry_after_s = retry_after_s


class UnavailableError(RetryError):
    """A 503."""

    def __init__(self, message: str, code: str, retry_after_s: int = RETRY_S):
        super().__init__(ErrorInfo(503, message, "service_unavailable", code=code), retry_after_s)


class LimitedError(RetryError):
    """A 429: the client has reached a limit of its key."""

    def __init__(self, message: str, kind: str, retry_after_s: int):
        """`kind`: what is limited, as OpenAI names it: requests or tokens."""
        super().__init__(ErrorInfo(429, message, kind, code="rate_limit_exceeded"), retry_after_s)


def forbidden(message: str, code: str) -> RequestError:
    """Returns a 403."""
    return RequestError(ErrorInfo(403, message, "permission_error", code=code))


def not_found(message: str, code: str, param: str | None = None) -> RequestError:
    """Returns a 404; `param` is the field of the body that names the missing object, if any."""
    return RequestError(ErrorInfo(404, message, "not_found_error", param, code))


def no_such_model(name: str) -> RequestError:
    """Returns the 404 for a model that is not served, or not to this client."""
    return not_found(f"The model `{cut(name)}` does not exist", "model_not_found", "model")


class ErrorFields(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """`{"error": {"message", "type", "param", "code"}}`, the body of every error and the event of a broken stream."""

    error: ErrorFields


def error_body(info: ErrorInfo) -> ErrorBody:
    return ErrorBody(ErrorFields(info.message, info.type, info.param, info.code))


class ErrorForm(NamedTuple):
    """The format of an endpoint's errors: `make` returns a `struct`."""

    struct: type[msgspec.Struct]
    make: Callable[[ErrorInfo], msgspec.Struct]


OPENAI_ERRORS = ErrorForm(ErrorBody, error_body)


def internal_error(reference: str) -> ErrorInfo:
    """Returns the 500 for an internal error; the log has the details under `reference`."""
    return ErrorInfo(500, f"internal error, reference {reference}", "internal_error", code="internal_error")


def no_such_path(path: str) -> RequestError:
    """Returns the 404 for a path close to an existing one, with a hint for clients whose base URL is wrong."""
    hint = ""
    if not path.startswith(f"{VERSION}/"):
        hint = f": set a base URL that ends in {VERSION}, so that the client asks for {cut(VERSION + path)}"
    elif path.startswith(2 * VERSION):
        hint = f": set a base URL without {VERSION} at its end, which this client adds"
    return not_found(f"there is no {cut(path)} here{hint}", "not_found")


def routing_error(error: HTTPException, method: str, path: str) -> ErrorInfo:
    """Returns the error for the router's 404 or 405."""
    match error.status_code:
        case 404:
            return ErrorInfo(404, f"there is no {cut(path)} here", "not_found_error", code="not_found")
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            return ErrorInfo(405, f"{cut(path)} takes {allowed}, not {cut(method)}", code="method_not_allowed")
        case status:
            return ErrorInfo(status, HTTPStatus(status).phrase)
