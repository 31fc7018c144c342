"""uvicorn's HTTP/1.1 connection, with bounds on the head of a request and JSON where a head makes no sense."""

import asyncio
import time
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from frontend.errors import error_body
from messages.errors import ErrorInfo

MAX_HEAD_BYTES = 65536
HEAD_TIMEOUT_S = 30.0
"""From the connection, or the first byte of a later request, to the end of the head."""

LAST_HEAD_TIMEOUT_S = 2.0
"""The same where the process is about to leave."""

LINGER_S = 2.0
"""How long a refused client may go on sending, so that it gets to read why."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose request head is at most about `MAX_HEAD_BYTES` long and arrives within `HEAD_TIMEOUT_S`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_began_s: float | None = time.monotonic()
        self._num_head_bytes = 0
        self._is_refused = False
        self._is_last = False
        """The next response is this connection's last."""
        self._running: RequestResponseCycle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disconnect_running()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self._head_began_s is None:
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self._is_refused:
            self._refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_began_s = time.monotonic()
        self._num_head_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_began_s = None
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if self._is_last:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    @property
    def is_answering(self) -> bool:
        """Tells whether a response is being waited for or written."""
        return self._running is not None and not self._running.response_complete

    def finish_up(self) -> None:
        """Makes the next response the connection's last; `close_if_stalled` ends it where no request comes for one.

        It is not closed at once, nor after a response that has begun: its client was told that the connection stays,
        and may be sending the next request already. May be called again.
        """
        if self._running is not None and self.is_answering:
            self._running.keep_alive = self._running.keep_alive and self._running.response_started
        elif self._head_began_s is None or not self._is_last:
            self._head_began_s = time.monotonic()
        self._is_last = True

    def close_if_stalled(self, now_s: float) -> None:
        """Closes a connection that has been waited on for the head of a request, or lingered on, for too long."""
        timeout_s = LINGER_S if self._is_refused else LAST_HEAD_TIMEOUT_S if self._is_last else HEAD_TIMEOUT_S
        if self._head_began_s is not None and now_s - self._head_began_s > timeout_s:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answers, unless an answer is being written, and drops what the client still sends until it closes."""
        if self._running is not None and self._running.response_started and not self._running.response_complete:
            self.transport.close()
            return
        body = msgspec.json.encode(error_body(ErrorInfo(status, message)))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        if self.transport.can_write_eof():  # TLS has no half-closed connections
            self.transport.write_eof()
        self._is_refused = True
        self._head_began_s = time.monotonic()
        self._disconnect_running()

    def _disconnect_running(self) -> None:
        """Tells the request that is being answered; uvicorn tells only the newest of a connection's requests."""
        if self._running is not None and self.is_answering:
            self._running.disconnected = True
            self._running.message_event.set()
