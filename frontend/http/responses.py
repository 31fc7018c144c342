"""Whole JSON responses, and the responses to exceptions."""

import asyncio
import contextlib
import logging
import secrets
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from frontend import errors
from frontend.requests.trace import trace_of
from messages.errors import RequestError

Headers = tuple[tuple[bytes, bytes], ...]

LINGER_S = 2.0
"""How long a client may keep sending a refused body, so that it can read the error."""

_encoder = msgspec.json.Encoder()

log = logging.getLogger("sluice.frontend")


class JsonReply:
    """An ASGI response with one JSON document. With `lingers` the rest of the request's body is read and dropped."""

    def __init__(self, content: Any, status: int = 200, headers: Headers = (), *, lingers: bool = False):
        self._body = _encoder.encode(content)
        self._status = status
        self._headers = headers
        self._lingers = lingers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        trace.status = self._status
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self._body)).encode()),
            *trace.reply_headers,
            *self._headers,
        ]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body, "more_body": self._lingers})
        if self._lingers:
            await _drop_body(receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class PlainReply(Response):
    """An ASGI response with a document that is not JSON."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        trace.status = self.status_code
        self.raw_headers += trace.reply_headers
        await super().__call__(scope, receive, send)


class FileReply(FileResponse):
    """An ASGI response: a file, or the part of it that a Range asks for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)

        async def record(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                message["headers"] = [*message["headers"], *trace.reply_headers]
            await send(message)

        try:
            await super().__call__(scope, receive, record)
        except RuntimeError:
            if trace.status:
                raise
            raise HTTPException(404) from None  # deleted meanwhile


def error_reply(error: Exception, method: str, path: str, form: errors.ErrorForm = errors.OPENAI_ERRORS) -> JsonReply:
    """Returns the response for `error`. Internal errors are logged with the reference that the client gets."""
    match error:
        case RequestError(info=info):
            return JsonReply(form.make(info), info.status, _headers_of(error), lingers=info.status in (413, 507))
        case HTTPException():
            allow = (error.headers or {}).get("Allow", "")
            headers = ((b"allow", allow.encode()),) if allow else ()
            return JsonReply(form.make(errors.routing_error(error, method, path)), error.status_code, headers)
        case _:
            return JsonReply(form.make(errors.internal_error(log_internal(error))), 500)


def log_internal(error: Exception) -> str:
    """Logs the traceback of `error` and returns the public reference to it."""
    reference = secrets.token_hex(6)
    log.error("internal error, reference %s", reference, exc_info=error)
    return reference


def _headers_of(error: RequestError) -> Headers:
    retry: Headers = ()
    if isinstance(error, errors.RetryError):
        retry = ((b"retry-after", str(error.retry_after_s).encode()), *error.headers)
    elif error.info.status == 503:
        retry = ((b"retry-after", str(errors.RETRY_S).encode()),)
    if error.info.status == 401:
        return ((b"www-authenticate", b"Bearer"),)
    closes = error.info.status in (408, 413, 507) or error.info.code in errors.ENDING_CODES
    return (*retry, (b"connection", b"close")) if closes else retry


async def _drop_body(receive: Receive) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
