"""Streams whose readers are slow, silent or gone."""

import json
import socket
from collections.abc import Iterator

import pytest

from messages.config import HttpConfig
from messages.errors import ErrorInfo
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, make_config, step, wait_until

NUM_STEPS = 600
TEXT = "x" * 20_000
"""12 MB in all: more than the kernel buffers of one connection."""


@pytest.fixture(scope="module")
def impatient() -> Iterator[FrontendRun]:
    with FrontendRun(make_config(HttpConfig(port=0, sse_keepalive_s=0.5))) as run:
        yield run


def test_increments_for_a_slow_reader_merge_and_nothing_is_lost(server: FrontendRun):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.settimeout(TIMEOUT_S)
        client.connect(server.address)
        body = b'{"prompt": "hi", "max_tokens": 601}'
        client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
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
    assert len(events) < NUM_STEPS / 2
    assert [token_id for event in events for token_id in event["token_ids"]] == list(range(NUM_STEPS + 1))
    assert "".join(event["text"] for event in events) == TEXT * NUM_STEPS + "end"


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
    call.leave()
    abort = server.take_abort()
    assert (abort.uid, abort.attempt) == (message.uid, 0)
    assert (server.gauge("requests"), server.gauge("abandoned_requests"), server.gauge("streams")) == (1, 1, 0)
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
        client.sendall(b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{"prompt": "hi"}')
        message = server.take_request()
        for token_id in range(NUM_STEPS):
            server.send(step([(message, token_id, TEXT)]))
        server.round_trip()
    assert server.take_abort().uid == message.uid
    server.send(step(finals=(final(message, finish_reason="abort"),)))
    wait_until(lambda: server.gauge("requests") == 0)


def test_a_client_that_pipelines_and_leaves_aborts(server: FrontendRun):
    with socket.create_connection(server.address) as client:
        client.sendall(b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{"prompt": "hi"}')
        message = server.take_request()
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
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


def test_garbage_behind_a_running_request_ends_it(server: FrontendRun):
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as client:
        client.sendall(b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{"prompt": "hi"}')
        message = server.take_request()
        server.send(step([(message, 1, "a")]))
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"garbage\r\n\r\n")
        assert server.take_abort().uid == message.uid
        server.send(step(finals=(final(message, finish_reason="abort"),)))
        while piece := client.recv(65536):
            assert b"HTTP/1.1" not in piece


def test_a_connection_serves_one_request_after_the_other(server: FrontendRun):
    with server.call() as call:
        server.send(step(finals=(final(server.take_request(), "a", (1,)),)))
        call.events()
        call.connection.request("GET", "/version")
        assert call.connection.getresponse().status == 200
