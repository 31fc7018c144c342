"""Bounds of request bodies and heads over real HTTP."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request

from frontend.api.openai.completions import CompletionBody
from frontend.http import body as body_module
from frontend.http.body import MAX_CONTAINERS, BodyDecoder, read_body
from frontend.requests.trace import RequestTrace
from messages.config.server import HttpConfig
from messages.errors import RequestError
from tests.frontend.conftest import MAX_BODY_MB
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, make_config, wait_until

JSON_HEAD = [(b"content-type", b"application/json")]
HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LIMIT_BYTES = int(MAX_BODY_MB * 2**20)


def talk(server: FrontendRun, *pieces: bytes) -> bytes:
    """Sends `pieces` and returns the output until the server closes the connection."""
    received = b""
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as client:
        for piece in pieces:
            client.sendall(piece)
        while piece := client.recv(65536):
            received += piece
    return received


def test_a_body_over_the_limit_is_refused_and_read_no_further(server: FrontendRun):
    response = server.post_raw("/generate", b" " * (40 * LIMIT_BYTES))
    assert response.status_code == 413
    assert response.json()["error"]["message"] == f"the body is larger than {LIMIT_BYTES} bytes"


def test_a_chunked_body_over_the_limit_is_refused(server: FrontendRun):
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * LIMIT_BYTES

    response = server.post_raw("/generate", pieces())
    assert response.status_code == 413


def test_an_announced_body_over_the_limit_is_refused_before_it_is_sent(server: FrontendRun):
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    received = talk(server, head % (LIMIT_BYTES + 1))
    assert received.startswith(b"HTTP/1.1 413 ")


def test_a_body_of_the_limit_is_taken(server: FrontendRun):
    prompt = "x" * (LIMIT_BYTES - len('{"prompt": "", "stream": false}'))
    with server.call({"prompt": prompt, "stream": False}) as call:
        message = server.take_request()
        assert message.prompt_text == prompt
        server.send(final(message))
        assert call.response.status == 200


def test_a_chunked_body_is_taken(server: FrontendRun):
    response = server.post_raw("/generate", iter([b'{"prompt": "hi", ', b'"max_tokens": 0}']))
    assert response.json()["error"]["param"] == "max_tokens"


def test_a_compressed_body_is_refused(server: FrontendRun):
    response = server.post_raw("/generate", b"\x1f\x8b", {"Content-Encoding": "gzip"})
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]


def test_a_client_that_leaves_in_its_body_leaves_nothing(server: FrontendRun):
    with socket.create_connection(server.address) as client:
        client.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"prompt"')
    server.round_trip()


@pytest.mark.parametrize(
    "head", [b"NONSENSE\r\n\r\n", b"GET /version HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n"]
)
def test_a_head_that_makes_no_sense_is_refused_in_json(server: FrontendRun, head: bytes):
    received = talk(server, head)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":{"message":' in received


def test_a_head_without_end_is_refused(server: FrontendRun):
    received = talk(server, b"GET /version HTTP/1.1\r\nX-Long: ", b"x" * 65536, b"x" * 65536)
    assert received.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/generate", 405),
        ("PUT", "/generate", 405),
        ("POST", "/health", 405),
        ("GET", "/nothing", 404),
        ("POST", "/generate/", 404),
        ("GET", "/v1/models/unknown/model", 404),
    ],
)
def test_errors_of_routing_are_json(server: FrontendRun, method: str, path: str, status: int):
    response = server.client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


def held_bytes(server: FrontendRun) -> float:
    return server.gauge("body_bytes")


def test_the_bodies_of_all_requests_have_one_budget():
    body = b'{"prompt": "' + b"x" * (2**20 - 100)
    head = HEAD + b"Content-Length: %d\r\n\r\n"
    with FrontendRun(make_config(HttpConfig(port=0, max_body_mb=1.0, max_bodies_mb=2.0))) as run:
        with socket.create_connection(run.address) as first, socket.create_connection(run.address) as second:
            for client in (first, second):  # each stops a little before its end
                client.sendall(head % (len(body) + 4) + body)
            wait_until(lambda: held_bytes(run) > 1.8 * 2**20)
            with socket.create_connection(run.address, timeout=TIMEOUT_S) as third:
                third.sendall(head % (len(body) + 4) + body)
                refused = b""
                while not refused.endswith(b"}}"):
                    refused += third.recv(65536)
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"--max-body-mb" in refused
            assert b"\r\nretry-after: " in refused.lower()
            run.round_trip()
            first.sendall(b'"}  ')
            run.send(final(run.take_request()))
            wait_until(lambda: held_bytes(run) < 1.1 * 2**20)
        wait_until(lambda: not held_bytes(run))
        response = run.ask("/generate", {"prompt": "x" * (2**20 - 100), "stream": False})
        run.send(final(run.take_request()))
        assert response.result().status_code == 200
        wait_until(lambda: not held_bytes(run))


def test_lists_and_objects_are_bounded_but_not_the_text_of_a_prompt():
    decoder = BodyDecoder(CompletionBody)
    with pytest.raises(RequestError, match=f"may have {MAX_CONTAINERS} lists and objects, got {MAX_CONTAINERS + 2}"):
        decoder.decode(b'{"prompt": [' + b"[1]," * MAX_CONTAINERS + b"[1]]}")
    prompt = b"[" * (2 * MAX_CONTAINERS)
    assert decoder.decode(b'{"prompt": "' + prompt + b'"}').prompt == prompt.decode()


class Arriving:
    """A request whose body arrives in `pieces`, followed by silence."""

    def __init__(self, *pieces: bytes):
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": JSON_HEAD}
        scope["sluice.trace"] = RequestTrace(scope)
        self._pieces = list(pieces)
        self.request = Request(scope, self._receive)

    async def _receive(self) -> dict[str, Any]:
        if not self._pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._pieces.pop(0), "more_body": True}


@pytest.mark.parametrize("name", ["SILENCE_TIMEOUT_S", "BODY_TIMEOUT_S"])
def test_a_body_that_stops_arriving_is_provided_up(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body_module, name, 0.05)
    with pytest.raises(RequestError) as raised:
        asyncio.run(asyncio.wait_for(read_body(Arriving(b'{"pro', b'mpt": "').request, 100), TIMEOUT_S))
    assert raised.value.info.status == 408
