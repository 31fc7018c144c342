"""A server connection without sockets: our protocol over a transport that records its output, and an echo app."""

import asyncio
import functools
import json
from collections.abc import Iterable
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from frontend.http.protocol import HttpProtocol

MAX_TURNS = 10_000


class MemoryTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = False
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing, "written after close"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Replies with method, target and body; for a path that begins with /chunked, without a length."""
    body = b""
    message: Message = {"more_body": True}
    while message["more_body"]:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    content = json.dumps([scope["method"], target.decode(), body.decode("latin-1")]).encode()
    headers = [] if target.startswith(b"/chunked") else [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


@functools.cache
def _config(app: Any) -> Config:
    return Config(app, http=HttpProtocol, ws="none", lifespan="off", interface="asgi3", log_config=None)


class MemoryConnection:
    """Requires a running event loop."""

    def __init__(self, app: Any = echo) -> None:
        self.transport = MemoryTransport()
        self.protocol = HttpProtocol(_config(app), ServerState(), {}, asyncio.get_running_loop())
        self.protocol.connection_made(self.transport)

    async def settle(self) -> None:
        """Waits until nothing more can happen without the client."""
        num_written, num_quiet = -1, 0
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            num_quiet = num_quiet + 1 if len(self.transport.written) == num_written else 0
            num_written = len(self.transport.written)
            if num_quiet > 8:
                return
        raise AssertionError("it does not settle")

    async def feed(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if not self.transport.is_closing():
                self.protocol.data_received(piece)
                await self.settle()

    async def end(self) -> None:
        """The client ends its sending side."""
        if not self.transport.is_closing() and not self.protocol.eof_received():
            self.transport.close()
        await self.settle()
        self.protocol.connection_lost(None)
        await self.settle()


def exchange(*pieces: bytes) -> bytes:
    """Returns the server's output for a client that sends `pieces` and then half-closes the connection."""

    async def run() -> bytes:
        connection = MemoryConnection()
        await connection.feed(pieces)
        await connection.end()
        return bytes(connection.transport.written)

    return asyncio.run(run())
