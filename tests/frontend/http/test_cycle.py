"""One request as its application sees it, on a connection played by the test."""

import asyncio
import logging
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from frontend.http.cycle import RequestCycle
from frontend.http.responses import JsonReply
from frontend.requests.trace import RequestTrace


class Transport:
    """Records its output. `is_gone`: the client has reset the connection, and the server does not know yet."""

    def __init__(self, is_gone: bool = False) -> None:
        self.written = b""
        self.is_gone = is_gone

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_gone

    def close(self) -> None:
        self.is_gone = True


def run(app: Any, transport: Transport) -> None:
    async def scenario() -> None:
        scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/", "headers": []}
        asyncio_transport = cast(asyncio.Transport, transport)
        flow = FlowControl(asyncio_transport)
        cycle = RequestCycle(scope, asyncio_transport, flow, [], lambda: None)
        cycle.end_body()
        await cycle.run(app)

    asyncio.run(scenario())


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    scope["sluice.trace"] = RequestTrace(scope)
    await JsonReply({"a": 1})(scope, receive, send)


async def forget(scope: Scope, receive: Receive, send: Send) -> None:
    """Returns without a response."""


def test_an_application_that_does_not_answer_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    transport = Transport()
    with caplog.at_level(logging.ERROR):
        run(forget, transport)
    assert transport.written.startswith(b"HTTP/1.1 500")
    assert "the application did not send a response" in caplog.text


def test_an_answer_to_a_client_that_is_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    transport = Transport(is_gone=True)
    with caplog.at_level(logging.ERROR):
        run(answer, transport)
    assert (transport.written, caplog.text) == (b"", "")


def test_an_answer_is_written() -> None:
    transport = Transport()
    run(answer, transport)
    assert transport.written.startswith(b"HTTP/1.1 200")
    assert transport.written.endswith(b'{"a":1}')
