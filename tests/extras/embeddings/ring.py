"""A ring that answers pooled requests with given numbers."""

from collections.abc import Sequence
from typing import Any

from messages.columns import pack_float32
from messages.ring.replies import PooledReply, Usage
from messages.ring.requests import TokenizeMsg
from tests.frontend.frontend_run import FrontendRun, final


def answer(server: FrontendRun, *results: Sequence[float], num_rows: int = 1) -> list[TokenizeMsg]:
    """Returns the next requests, which get these numbers, the last one first."""
    messages = [server.take_request() for _ in results]
    for message, values in reversed(list(zip(messages, results, strict=True))):
        server.send(PooledReply(message.uid, message.attempt, pack_float32(values), num_rows))
        server.send(final(message, usage=Usage(3, 1, 0)))
    return messages


def post(server: FrontendRun, path: str, body: Any, *results: Sequence[float], **fields: Any) -> tuple[Any, list[Any]]:
    asked = server.ask(path, body)
    messages = answer(server, *results, **fields)
    response = asked.response()
    assert response.status_code == 200, response.text
    return response.json(), messages
