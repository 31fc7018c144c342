"""Calls an endpoint from within this process, with the same code as for a connection."""

import asyncio
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request

from frontend.http.endpoint import Endpoint
from frontend.http.responses import error_reply
from frontend.requests.client import INTERNAL, Client
from frontend.requests.trace import RequestTrace


class Reply(NamedTuple):
    status: int
    request_id: str
    body: bytes


@dataclass(eq=False)
class InProcessCall:
    """A POST of the JSON `body` to `endpoint` in the name of `client`.

    `on_response` is called at the end of its response, as for any other.
    """

    _endpoint: Endpoint
    _body: bytes
    _on_response: Callable[[RequestTrace], None]
    _client: Client = INTERNAL
    trace: RequestTrace | None = field(default=None, init=False)
    """The trace of the latest `run`."""

    @property
    def num_open(self) -> int:
        """The number of its choices that have not ended."""
        return 0 if self.trace is None else sum(entry.final is None for entry in self.trace.generations)

    async def run(self) -> Reply:
        """Returns the whole reply, even if it is an error. May be called again. A cancellation ends the choices."""
        headers = [(b"content-type", b"application/json")]
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": self._endpoint.path, "headers": headers}
        scope |= {"query_string": b"", "scheme": "http", "http_version": "1.1", "client": None, "server": None}
        self.trace = scope["sluice.trace"] = trace = RequestTrace(scope)
        trace.client = self._client
        bodies, written = [self._body], bytearray()

        async def receive() -> MutableMapping[str, Any]:
            if not bodies:
                await asyncio.Event().wait()  # this client never leaves
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            written.extend(message.get("body", b""))

        try:
            try:
                response = await self._endpoint.run(Request(scope, receive))
                await response(scope, receive, send)
            except Exception as error:
                form = self._endpoint.error_form
                await error_reply(error, trace.method, trace.path, form)(scope, receive, send)
        finally:
            self._on_response(trace)
            trace.write_line(is_quiet=True)
        return Reply(trace.status, trace.request_id, bytes(written))
