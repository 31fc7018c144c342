"""One request and its response as the application sees them (ASGI), and the framing of the response."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

from frontend.errors import error_body, internal_error
from frontend.http.responses import log_internal
from messages.errors import ErrorInfo

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

BODILESS = frozenset({204, 304})

_UNSAFE_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(eq=False)
class RequestCycle:
    """`on_end` is called after the response.

    A response of unknown length is chunked; for an HTTP/1.0 client, closing the connection ends it.
    """

    _scope: Scope
    _transport: asyncio.Transport
    _flow: FlowControl
    _default_headers: list[tuple[bytes, bytes]]
    _on_end: Callable[[], None]
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _body: bytearray = field(default_factory=bytearray)
    _has_left: bool = False
    _is_cut: bool = False
    _is_chunked: bool = False
    _num_missing_bytes: int | None = None
    """Bytes of the announced response length that have not been written."""
    awaits_continue: bool = False
    """The client sends the body only after an interim response."""
    more_body: bool = True
    """The request's body is incomplete."""
    is_last: bool = False
    """The connection closes after this response."""
    has_begun: bool = False
    has_ended: bool = False

    @property
    def http_version(self) -> str:
        return self._scope["http_version"]

    def take_body(self, body: bytes) -> None:
        """Buffers a piece of the request's body for the application."""
        if self.has_ended or self._is_cut:
            return
        self._body += body
        if len(self._body) > HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        self._news.set()

    def end_body(self) -> None:
        self.more_body = False
        self._news.set()

    def leave(self) -> None:
        """Notifies the application that the client has left. A response that it still makes is written."""
        self._has_left = True
        self._news.set()

    def cut(self) -> None:
        """Notifies the application that the client has left. Nothing more of its response is written."""
        self._is_cut = True
        self.leave()

    async def run(self, app: ASGIApp) -> None:
        """Runs `app`. If it fails, the reply is a 500, or the connection closes if the response has begun."""
        try:
            await app(self._scope, self.receive, self.send)
            # If the client is gone, the connection is closing shortly before the application is notified.
            if not (self.has_begun or self._has_left or self._transport.is_closing()):
                raise RuntimeError("the application did not send a response")
        except Exception as error:
            info = internal_error(log_internal(error))
            if not self.has_begun and not self._is_cut:
                self.is_last = True
                self.has_begun = self.has_ended = True
                self._transport.write(whole_response(info, self._default_headers))
                self._on_end()
        finally:
            if not self.has_ended and not self._is_cut:
                self._transport.close()

    async def receive(self) -> Message:
        if self.awaits_continue and self.more_body and not (self._body or self.has_begun or self._has_left):
            self._transport.write(CONTINUE)
        self.awaits_continue = False
        if not self._has_left and not self.has_ended:
            await self._news.wait()
            self._news.clear()
        if self._has_left or self.has_ended:
            return {"type": "http.disconnect"}
        body = bytes(self._body)
        self._body.clear()
        self._flow.resume_reading()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        if self._flow.write_paused and not self._is_cut:
            await self._flow.drain()
        if self._is_cut or self._transport.is_closing():
            return
        match message["type"]:
            case "http.response.start" if not self.has_begun:
                self._begin(message["status"], message.get("headers", ()))
            case "http.response.body" if self.has_begun and not self.has_ended:
                self._write_body(message.get("body", b""), more_body=message.get("more_body", False))
            case kind:
                raise RuntimeError(f"unexpected message {kind}")

    def _begin(self, status: int, headers: Any) -> None:
        if self.awaits_continue and self.more_body:
            self.is_last = True  # the client may or may not still send the body
        lines = [_status_line(status)]
        for name, value in (*self._default_headers, *headers):
            if _UNSAFE_VALUE.search(value):
                raise RuntimeError(f"the value of {name!r} cannot be sent")
            if name == b"content-length":
                self._num_missing_bytes = int(value)
            elif name == b"connection":
                self.is_last = self.is_last or value == b"close"
                continue
            lines.append(name + b": " + value)
        if self._scope["method"] == "HEAD" or status in BODILESS:
            self._num_missing_bytes = 0
        elif self._num_missing_bytes is None:
            self._is_chunked = self.http_version != "1.0"
            if self._is_chunked:
                lines.append(b"transfer-encoding: chunked")
            else:
                self.is_last = True
        if self.is_last:
            lines.append(b"connection: close")
        self.has_begun = True
        self._transport.write(b"\r\n".join([*lines, b"", b""]))

    def _write_body(self, body: bytes, *, more_body: bool) -> None:
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._transport.write(chunk if more_body else chunk + b"0\r\n\r\n")
        else:
            self._transport.write(self._fit(body, more_body=more_body))
        if not more_body:
            self.has_ended = True
            self._news.set()
            self._on_end()

    def _fit(self, body: bytes, *, more_body: bool) -> bytes:
        """Returns the part of `body` to write. Raises `RuntimeError` if it does not match the announced length."""
        if self._num_missing_bytes is None:
            return body
        if self._scope["method"] == "HEAD":
            return b""
        self._num_missing_bytes -= len(body)
        if self._num_missing_bytes < 0 or (self._num_missing_bytes and not more_body):
            raise RuntimeError("the response does not have its announced length")
        return body


def whole_response(info: ErrorInfo, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """Returns the response for an error outside of the application; it is the connection's last."""
    body = msgspec.json.encode(error_body(info))
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    lines = [_status_line(info.status), *(name + b": " + value for name, value in headers)]
    return b"\r\n".join([*lines, b"", body])


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %s" % (status, phrase.encode())
