"""HTTP/1.1 connections to the models' Unix sockets: they are reused, with one request at a time on each."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import httptools

Headers = Sequence[tuple[bytes, bytes]]

MAX_IDLE = 64
"""Connections to each server that stay open without a request."""

FETCH_TIMEOUT_S = 5.0
PIECE_BYTES = 65536


class UpstreamGoneError(Exception):
    """The server does not listen, or has closed the connection before the end of its response."""


class Call(NamedTuple):
    method: str
    target: bytes
    headers: Headers = ()
    body: bytes = b""

    def encode(self) -> bytes:
        lines = [b"%b %b HTTP/1.1" % (self.method.encode(), self.target), b"host: localhost"]
        lines += [name + b": " + value for name, value in self.headers]
        if self.body:
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join([*lines, b"", self.body])


class Connection:
    """`status` and `headers` are those of the response to the latest `call`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._call = Call("", b"")
        self._has_head = False
        self._is_complete = False
        self._can_persist = True
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    @property
    def is_reusable(self) -> bool:
        """True between two requests, while the server keeps the connection open."""
        return self._can_persist and not self._reader.at_eof()

    async def call(self, call: Call) -> None:
        """Sends a request and waits for the head of its response; the one before has been read to its end.

        Raises `UpstreamGoneError`, also for the refusal of a server that ends; the connection is closed then.
        """
        self._call = call
        self._has_head = self._is_complete = self._can_persist = False
        self._writer.write(call.encode())
        try:
            while not self._has_head:
                await self._feed()
            if self.status == 503 and (b"connection", b"close") in self.headers:
                raise UpstreamGoneError  # other refusals leave the connection open
        except BaseException:
            self.close()
            raise

    async def read(self) -> tuple[bytes, bool]:
        """Waits for the next part of the body. Returns it, and whether it is the last. Raises `UpstreamGoneError`."""
        while not (self._body or self._is_complete):
            await self._feed()
        piece = bytes(self._body)
        self._body.clear()
        return piece, self._is_complete

    async def _feed(self) -> None:
        try:
            if not (data := await self._reader.read(PIECE_BYTES)):
                raise UpstreamGoneError
            self._parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise UpstreamGoneError from error

    def close(self) -> None:
        """Ends the connection and with it the request, if that is still open."""
        self._can_persist = False
        self._writer.transport.abort()

    # Called by llhttp.

    def on_message_begin(self) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # trailers are dropped
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        self._is_complete = self._has_head and self._call.method == "HEAD"

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_complete = self._has_head
        self._can_persist = self._call.method != "HEAD" and self._parser.should_keep_alive()


class Upstreams:
    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = defaultdict(list)
        """By url, `unix:PATH`."""

    async def open(self, url: str, call: Call) -> Connection:
        """Sends a request, waits for the head of its response and returns the connection.

        Raises `UpstreamGoneError`, also if a connection that was open already has been closed just now.
        """
        idle = self._idle[url] = [each for each in self._idle[url] if each.is_reusable]
        try:
            streams = () if idle else await asyncio.open_unix_connection(url.removeprefix("unix:"))
        except OSError as error:
            raise UpstreamGoneError from error
        connection = Connection(*streams) if streams else idle.pop()
        await connection.call(call)
        return connection

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
        """Closes the idle connections to a server that has closed one, or has ended."""
        for connection in self._idle.pop(url, ()):
            connection.close()
