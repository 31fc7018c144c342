"""Keep-alive connections to one server, each of which carries one request at a time."""

import asyncio
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from benchmarks.load.answer import TIMED_OUT, UNREACHABLE, Answer, StreamResult
from messages.errors import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and how long one may take (connecting included)."""

    host: str
    port: int
    api_key: str = ""
    timeout_s: float = 120.0

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"http://{self.authority}"

    def request(self, body: bytes) -> bytes:
        """Returns the bytes of `POST /generate` with this JSON body."""
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = (
            f"POST /generate HTTP/1.1\r\nHost: {self.authority}\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body


def parse_url(url: str) -> tuple[str, int]:
    """Returns host and port. Raises `UsageError` for anything but `http://host:port`."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and parts.path in ("", "/"):
            return parts.hostname, parts.port or 80
    except ValueError:
        pass
    raise UsageError(f"--url: {url!r} is not of the form http://host:port")


class Connection(asyncio.Protocol):
    """One connection. `is_open` turns false when it can carry no further request."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None

    async def stream(self, request: bytes, result: StreamResult) -> None:
        """Sends `request` and returns when its answer has ended; `result.outcome` is then set."""
        assert self._transport is not None, "not connected"
        assert self._done is None, "a connection carries one request at a time"
        answer = self._answer = Answer(result)
        self._done = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            await self._done
        finally:
            self._answer = self._done = None
            if not answer.can_reuse_connection:
                self.close()

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()
            return
        self._answer.feed(data)
        if self._answer.is_complete:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None:
            self._answer.connection_lost(str(exc) if exc else "the server closed the connection in mid-answer")
            self._wake()

    def _wake(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class ConnectionPool:
    """Runs requests on free connections to `target` and opens new ones as needed."""

    def __init__(self, target: Target):
        self.target = target
        self._free: list[Connection] = []

    async def stream(self, body: bytes, result: StreamResult) -> None:
        """Runs one request to its end, which `result` describes. Raises only cancellation."""
        connection = None
        try:
            async with asyncio.timeout(self.target.timeout_s):
                connection = self._take_free() or await self._connect()
                await connection.stream(self.target.request(body), result)
        except TimeoutError:
            result.end(TIMED_OUT, f"no end after {self.target.timeout_s:g} s")
        except OSError as error:
            result.end(UNREACHABLE, str(error))
        finally:
            # Also if the caller is cancelled just as its answer ends: `close` must find the connection.
            if connection is not None and connection.is_open:
                self._free.append(connection)

    def close(self) -> None:
        for connection in self._free:
            connection.close()
        self._free.clear()

    def _take_free(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.target.host, self.target.port)
        return connection
