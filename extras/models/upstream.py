"""HTTP/1.1 connections to the models' servers: they are reused, with one request at a time on each."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

Headers = Sequence[tuple[bytes, bytes]]

MAX_IDLE = 64
"""Connections to each server that stay open without a request."""

FETCH_TIMEOUT_S = 5.0


class UpstreamGoneError(Exception):
    """The server does not listen, or has closed the connection before the end of its response."""


class Call(NamedTuple):
    """A request. `body` is `None` if it is written later in chunks, of the length in `headers` if that has one."""

    method: str
    target: bytes
    headers: Headers = ()
    body: bytes | None = b""

    def encode(self, host: str) -> bytes:
        """Returns the request as far as it is known."""
        lines = [b"%b %b HTTP/1.1" % (self.method.encode(), self.target), b"host: " + host.encode()]
        lines += [name + b": " + value for name, value in self.headers]
        if self.body:
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join([*lines, b"", self.body or b""])


class Connection(asyncio.Protocol):
    """`status` and `headers` are those of the response to the latest `call`."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._method = ""
        self._is_lost = False
        self._has_head = False
        self._is_complete = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_reusable = True

    def call(self, call: Call, host: str) -> None:
        """Sends a request; the response to the one before has been read to its end."""
        self._has_head = self._is_complete = False
        self.headers = []
        self._method = call.method
        self.is_reusable = False
        self._transport.write(call.encode(host))

    async def write(self, piece: bytes) -> None:
        """Sends a piece of the request's body; waits as long as the server does not read."""
        self._transport.write(piece)
        await self._flow.drain()

    async def read_head(self) -> None:
        """Waits for the head. Raises `UpstreamGoneError`."""
        while not self._has_head:
            await self._wait()

    async def read(self) -> tuple[bytes, bool]:
        """Waits for the next part of the body. Returns it, and whether it is the last. Raises `UpstreamGoneError`."""
        while not (self._body or self._is_complete):
            await self._wait()
        piece = bytes(self._body)
        self._body.clear()
        self._flow.resume_reading()
        return piece, self._is_complete

    async def _wait(self) -> None:
        if self._is_lost:
            raise UpstreamGoneError
        self._news.clear()
        await self._news.wait()

    def close(self) -> None:
        """Ends the connection and with it the request, if that is still open."""
        self.is_reusable = False
        self._transport.abort()

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._flow = FlowControl(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost, self.is_reusable = True, False
        self._flow.resume_writing()
        self._news.set()

    def pause_writing(self) -> None:
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        self._flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        if len(self._body) > HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        self._news.set()

    # Called by llhttp.

    def on_message_begin(self) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # trailers are dropped
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        self._is_complete = self._has_head and self._method == "HEAD"

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_complete = self._has_head
        self.is_reusable = self._method != "HEAD" and self._parser.should_keep_alive()


class Upstreams:
    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = defaultdict(list)
        """By url."""

    async def open(self, url: str, call: Call) -> Connection:
        """Sends a whole request, waits for the head of its response and returns the connection.

        Raises `UpstreamGoneError`. A connection that was open already may have been closed just now, so another one is
        tried.
        """
        while self._idle[url]:
            connection = self._idle[url].pop()
            if connection.is_reusable:
                connection.call(call, urlsplit(url).netloc)
                with contextlib.suppress(UpstreamGoneError):
                    await self._read_head(connection)
                    return connection
        connection = await self.begin(url, call)
        await self._read_head(connection)
        return connection

    async def begin(self, url: str, call: Call) -> Connection:
        """Sends a request on a new connection and returns that. Raises `UpstreamGoneError` if no server listens."""
        address = urlsplit(url)
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, address.hostname or "", address.port or 0)
        except OSError as error:
            raise UpstreamGoneError from error
        connection.call(call, address.netloc)
        return connection

    async def _read_head(self, connection: Connection) -> None:
        try:
            await connection.read_head()
        except BaseException:
            connection.close()
            raise

    def release(self, url: str, connection: Connection) -> None:
        """Keeps the connection for another request, or closes it if its response has not been read to its end."""
        idle = self._idle[url]
        if connection.is_reusable and len(idle) < MAX_IDLE:
            idle.append(connection)
        else:
            connection.close()

    async def fetch(self, url: str, path: str, headers: Headers = ()) -> tuple[int, bytes]:
        """Returns the status and the body of a GET. Raises `UpstreamGoneError`, also if it takes too long."""
        body, is_last = b"", False
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                connection = await self.open(url, Call("GET", path.encode(), headers))
                try:
                    while not is_last:
                        piece, is_last = await connection.read()
                        body += piece
                finally:
                    self.release(url, connection)
        except TimeoutError:
            raise UpstreamGoneError from None
        return connection.status, body

    def forget(self, url: str) -> None:
        """Closes the idle connections to a server that ends."""
        for connection in self._idle.pop(url, ()):
            connection.close()
