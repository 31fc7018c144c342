"""Streams whose readers are slow, silent or gone."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from messages.config.server import HttpConfig
from messages.errors import ErrorInfo
from messages.ring.replies import Usage
from tests.frontend.frontend_run import (
    TIMEOUT_S,
    Call,
    FrontendRun,
    final,
    make_config,
    position_logprobs,
    step,
    wait_until,
)

HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
NUM_STEPS = 600
TEXT = "x" * 20_000
"""12 MB in all: more than the kernel buffers of one connection."""


@pytest.fixture(scope="module")
def impatient() -> Iterator[FrontendRun]:
    with FrontendRun(make_config(HttpConfig(port=0, sse_keepalive_s=0.5))) as run:
        yield run


def test_a_slow_reader_gets_every_step_and_nothing_is_lost(server: FrontendRun):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.settimeout(TIMEOUT_S)
        client.connect(server.address)
        body = b'{"prompt": "hi", "max_tokens": 601}'
        client.sendall(HEAD % len(body) + body)
        message = server.take_request()
        for token_id in range(NUM_STEPS):
            server.send(step([(message, token_id, TEXT)]))
        server.round_trip()
        server.send(step(finals=(final(message, "end", (NUM_STEPS,)),)))
        server.round_trip()
        received = b""
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            piece = client.recv(1 << 20)
            assert piece, received[-200:]
            received += piece
    events = [json.loads(event) for event in _unchunk(received).split(b"data: ")[1:-1]]
    assert [event["token_ids"] for event in events] == [[token_id] for token_id in range(NUM_STEPS + 1)]
    assert "".join(event["text"] for event in events) == TEXT * NUM_STEPS + "end"


BODIES = {
    "/generate": {"logprobs": 0},
    "/v1/completions": {"logprobs": 0, "stream_options": {"continuous_usage_stats": True, "include_usage": True}},
    "/v1/chat/completions": {
        "logprobs": True,
        "stream_options": {"continuous_usage_stats": True, "include_usage": True},
    },
}


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("has_more", [False, True], ids=["text", "logprobs and usage"])
def test_a_frontend_that_runs_late_writes_an_event_for_each_step(server: FrontendRun, path: str, has_more: bool):
    """All steps and the end have arrived before the response runs."""
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    body = {"max_tokens": NUM_STEPS + 1, "stream": True, **prompt, **(BODIES[path] if has_more else {})}
    with Call(server.address, body, {}, path) as call:
        message = server.take_request()
        server.process.suspend()
        for token_id in range(NUM_STEPS):
            logprobs = {0: position_logprobs(token_id, "x", -1.0, token_id)} if has_more else {}
            server.send(step([(message, token_id, "x")], logprobs=logprobs))
        logprobs = (position_logprobs(NUM_STEPS, "y", -1.0, NUM_STEPS),) if has_more else ()
        usage = Usage(2, 0, NUM_STEPS + 1)
        server.send(step(finals=(final(message, "y", (NUM_STEPS,), logprobs=logprobs, usage=usage),)))
        server.process.resume()
        events = call.events()
    texts, logprobs, completion_tokens = zip(*(_content(event) for event in events if _content(event)[0]), strict=True)
    assert texts == ("x",) * NUM_STEPS + ("y",)
    if has_more:
        assert logprobs == (1,) * (NUM_STEPS + 1)
    if has_more and path != "/generate":
        assert completion_tokens == tuple(range(1, NUM_STEPS + 2))


def _content(event: dict[str, Any]) -> tuple[str, int, int]:
    """Returns the text of an event of any endpoint, how many tokens have logprobs in it, and the tokens counted."""
    choice = (event["choices"] or [{}])[0] if "choices" in event else event
    text = choice.get("text") or choice.get("delta", {}).get("content", "")
    logprobs = choice.get("logprobs") or []
    if isinstance(logprobs, dict):
        logprobs = logprobs.get("content") or logprobs.get("tokens") or []
    return text, len(logprobs), (event.get("usage") or {}).get("completion_tokens", 0)


def test_what_came_before_a_failure_is_written_in_whole(server: FrontendRun):
    with server.call() as call:
        message = server.take_request()
        server.send(step([(message, 0, "x")]))
        assert json.loads(call.next_data())["text"] == "x"
        server.process.suspend()
        for token_id in range(1, NUM_STEPS):
            server.send(step([(message, token_id, "x")]))
        error = ErrorInfo(500, "it broke", "server_error")
        server.send(step(finals=(final(message, finish_reason="error", error=error),)))
        server.process.resume()
        *events, failure = call.events()
    assert [event["token_ids"] for event in events] == [[token_id] for token_id in range(1, NUM_STEPS)]
    assert failure["error"]["message"] == "it broke"


def _unchunk(response: bytes) -> bytes:
    rest = response.partition(b"\r\n\r\n")[2]
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            return body
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_aborts_and_its_request_lives_until_the_final(server: FrontendRun, is_streamed: bool):
    call = server.call({"stream": is_streamed})
    message = server.take_request()
    server.send(step([(message, 1, "a")]))
    if is_streamed:
        call.next_event()
    server.round_trip()
    call.leave()
    abort = server.take_abort()
    assert (abort.uid, abort.attempt) == (message.uid, 0)
    assert (server.gauge("requests"), server.gauge("abandoned_requests"), server.gauge("streams")) == (1, 1, 0)
    line = f"POST /generate {200 if is_streamed else 499} uid={message.uid} completion=1 ttft="
    wait_until(lambda: line in server.launcher.log_text("frontend"))
    (stated,) = (one for one in server.launcher.log_text("frontend").splitlines() if line in one)
    assert " client=left total=" in stated
    server.send(step([(message, 2, "b")]))
    server.send(step(finals=(final(message, finish_reason="abort"),)))
    wait_until(lambda: server.gauge("requests") == 0)


def test_a_client_that_leaves_before_the_first_token_aborts(server: FrontendRun):
    call = server.call()
    message = server.take_request()
    call.leave()
    assert server.take_abort().uid == message.uid
    server.send(step(finals=(final(message, finish_reason="abort"),)))
    wait_until(lambda: server.gauge("requests") == 0)
    wait_until(lambda: f"POST /generate 499 uid={message.uid}" in server.launcher.log_text("frontend"))


def test_a_client_that_leaves_while_its_stream_is_stuck_aborts(server: FrontendRun):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.address)
        client.sendall(HEAD % 16 + b'{"prompt": "hi"}')
        message = server.take_request()
        for token_id in range(NUM_STEPS):
            server.send(step([(message, token_id, TEXT)]))
        server.round_trip()
    assert server.take_abort().uid == message.uid
    server.send(step(finals=(final(message, finish_reason="abort"),)))
    wait_until(lambda: server.gauge("requests") == 0)


def test_a_client_that_pipelines_and_leaves_aborts(server: FrontendRun):
    with socket.create_connection(server.address) as client:
        client.sendall(HEAD % 16 + b'{"prompt": "hi"}')
        message = server.take_request()
        client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.round_trip()

    def is_noticed() -> bool:
        server.send(step([(message, 1, "x")]))
        return server.gauge("abandoned_requests") == 1

    wait_until(is_noticed)
    assert server.take_abort().uid == message.uid
    server.send(step(finals=(final(message, finish_reason="abort"),)))
    wait_until(lambda: server.gauge("requests") == 0)


def test_a_silent_stream_gets_comments(impatient: FrontendRun):
    with impatient.call() as call:
        message = impatient.take_request()
        assert call.next_event() == ": keep-alive"
        impatient.send(step([(message, 1, "a")]))
        assert json.loads(call.next_data())["text"] == "a"
        assert call.next_event() == ": keep-alive"
        assert call.next_event() == ": keep-alive"
        impatient.send(step(finals=(final(message, "b", (2,)),)))
        assert [event["text"] for event in call.events()] == ["b"]


def test_a_refusal_after_a_comment_is_an_event(impatient: FrontendRun):
    with impatient.call() as call:
        message = impatient.take_request()
        assert call.next_event() == ": keep-alive"
        error = ErrorInfo(400, "the prompt is too long")
        impatient.send(final(message, finish_reason="error", error=error))
        assert call.response.status == 200
        assert [event["error"]["message"] for event in call.events()] == [error.message]


def test_garbage_behind_a_running_request_is_refused_after_its_response(server: FrontendRun):
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as client:
        client.sendall(HEAD % 16 + b'{"prompt": "hi"}')
        message = server.take_request()
        server.send(step([(message, 1, "a")]))
        received = client.recv(65536)
        client.sendall(b"garbage\r\n\r\n")
        server.round_trip()
        server.send(step(finals=(final(message, "b", (2,)),)))
        while piece := client.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"data: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1 400 " in received


def test_a_connection_serves_one_request_after_the_other(server: FrontendRun):
    with server.call() as call:
        server.send(step(finals=(final(server.take_request(), "a", (1,)),)))
        call.events()
        call.connection.request("GET", "/version")
        assert call.connection.getresponse().status == 200
