"""An HTTP/1.1 connection: its requests are answered one at a time, in order, and each head has a time limit."""

import asyncio
import logging
import socket
import time
from collections import deque
from typing import Any, cast

from starlette.types import ASGIApp, Scope
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from frontend.http.cycle import RequestCycle, whole_response
from frontend.http.framing import RequestHead
from frontend.http.request_parser import RequestParser
from messages.errors import ErrorInfo, RequestError

HEAD_TIMEOUT_S = 30.0
"""Time limit for a head, counted from the connection, the previous response or the first byte of a later request."""

LAST_HEAD_TIMEOUT_S = 2.0
"""The same while the process is leaving."""

LINGER_S = 2.0
"""How long a client may keep sending after its last response, so that it can read the response."""

LOCAL_PEER = "127.0.0.1", 0
"""The client on a Unix socket: a program of this user on this machine."""

MAX_AHEAD_BYTES = 65536
"""Maximum bytes of further requests that are read while one is answered."""

log = logging.getLogger("sluice.frontend")


class HttpProtocol(asyncio.Protocol):
    """An invalid request is refused after the requests before it have been answered; nothing more is read then."""

    def __init__(
        self,
        config: UvicornConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        if not config.loaded:
            config.load()
        self._app = cast(ASGIApp, config.loaded_app)  # pyright: ignore[reportUnknownMemberType]
        self._root_path = config.root_path
        self._server_state = server_state
        self._connections = cast("set[Any]", server_state.connections)
        self._app_state = app_state
        self._loop = _loop or asyncio.get_event_loop()
        self._parser = RequestParser(self)
        self._incoming: RequestCycle | None = None
        """The request whose body is incomplete."""
        self._running: RequestCycle | None = None
        """The request that is being answered."""
        self._queue: deque[RequestCycle] = deque()
        """The requests after it."""
        self._refusal: ErrorInfo | None = None
        """The error that follows these requests."""
        self._num_ahead_bytes = 0
        self._waits_since_s: float | None = time.monotonic()
        """When the wait for a head, or the lingering, began."""
        self._is_leaving = False
        """The next response is the connection's last."""
        self._is_lingering = False

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._flow = FlowControl(transport)
        own: socket.socket | None = transport.get_extra_info("socket")
        is_unix = own is not None and own.family == socket.AF_UNIX
        self._peers = {
            "server": get_local_addr(transport),
            "client": LOCAL_PEER if is_unix else get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
        }
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._parser.stop()
        if self._running is not None:
            self._running.cut()
        self._flow.resume_writing()

    def pause_writing(self) -> None:
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        self._flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except RequestError as error:
            self._refuse(error.info)
        if self._running is not None and self._running is not self._incoming:
            self._num_ahead_bytes += len(data)
            if self._num_ahead_bytes > MAX_AHEAD_BYTES:
                self._flow.pause_reading()

    def eof_received(self) -> bool:
        """Returns False: a client that closes its sending side has left (decision 0028)."""
        if not self._is_lingering and (self._parser.is_in_head or self._incoming is not None):
            self._refuse(ErrorInfo(400, "the connection ended within a request"))
        if self._running is not None:
            self._transport.abort()
        return False

    # Called by the parser.

    def on_request(self, head: RequestHead) -> None:
        self._waits_since_s = None
        cycle = RequestCycle(
            self._scope(head), self._transport, self._flow, self._server_state.default_headers, self._next_request
        )
        cycle.awaits_continue = head.expects_continue
        cycle.is_last = not head.keep_alive
        self._incoming = cycle
        if self._running is None:
            self._start(cycle)
        else:
            self._queue.append(cycle)

    def on_body(self, body: bytes) -> None:
        assert self._incoming is not None
        self._incoming.take_body(body)

    def on_end(self) -> None:
        assert self._incoming is not None
        self._incoming.end_body()
        if self._incoming.is_last:
            self._parser.stop()
        self._incoming = None

    def _scope(self, head: RequestHead) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "method": head.method,
            "path": self._root_path + head.path,
            "raw_path": self._root_path.encode("ascii") + head.raw_path,
            "query_string": head.query,
            "root_path": self._root_path,
            "headers": head.headers,
            "state": self._app_state.copy(),
            **self._peers,
        }

    # Responses, one at a time.

    def _start(self, cycle: RequestCycle) -> None:
        self._running = cycle
        self._num_ahead_bytes = 0
        cycle.is_last = cycle.is_last or self._is_leaving
        task = self._loop.create_task(cycle.run(self._app))
        task.add_done_callback(self._server_state.tasks.discard)
        self._server_state.tasks.add(task)

    def _next_request(self) -> None:
        """Continues the connection after a response."""
        ended, self._running = self._running, None
        assert ended is not None
        if self._transport.is_closing():
            return
        self._waits_since_s = time.monotonic()
        self._flow.resume_reading()
        if ended.is_last:
            self._parser.stop()
            if ended.more_body:
                self._linger()
            else:
                self._transport.close()
        elif self._queue:
            self._start(self._queue.popleft())
        elif self._refusal is not None:
            self._write_refusal()

    def _refuse(self, info: ErrorInfo) -> None:
        """Refuses the request that is being read when its turn comes, and reads no further ones."""
        log.info("invalid request: %d %s", info.status, info.message)
        self._refusal = info
        refused, self._incoming = self._incoming, None
        if refused is not None and refused.has_begun:  # and so has its response
            refused.cut()
            self._transport.close()
            return
        if refused is not None and refused is self._running:
            refused.cut()
            self._running = None
        elif refused is not None:
            self._queue.remove(refused)
        if self._running is None:
            self._write_refusal()

    def _write_refusal(self) -> None:
        assert self._refusal is not None
        self._transport.write(whole_response(self._refusal, self._server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        """Drops further input until the client closes: if we closed first, the client could lose the response."""
        self._is_lingering = True
        self._waits_since_s = time.monotonic()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    # Called by the server.

    @property
    def is_answering(self) -> bool:
        """True while a response is awaited or written."""
        return self._running is not None

    @property
    def num_unsent_bytes(self) -> int:
        """Bytes of responses that are still buffered in this process because the client does not read."""
        return self._transport.get_write_buffer_size()

    def shutdown(self) -> None:
        """Closes the connection now, or after the response in progress."""
        if self._running is None:
            self._transport.close()
        else:
            self._running.is_last = True

    def finish_up(self) -> None:
        """Makes the next response the connection's last; without a further request, `tick` closes it.

        It is not closed at once or after a response that has begun: the client was promised a persistent connection
        and may already be sending the next request. May be called again.
        """
        if self._running is not None:
            self._running.is_last = self._running.is_last or not self._running.has_begun
        elif not self._is_leaving:
            self._waits_since_s = time.monotonic()
        self._is_leaving = True

    def tick(self, now_s: float) -> None:
        """Closes the connection if it has been waiting for too long. Call it once a second."""
        if self._running is not None or self._waits_since_s is None:
            return
        timeout_s = LINGER_S if self._is_lingering else LAST_HEAD_TIMEOUT_S if self._is_leaving else HEAD_TIMEOUT_S
        if now_s - self._waits_since_s > timeout_s:
            self._transport.close()
