"""Bad inputs of every kind: each gets a clear error, and the server is unaffected."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.naming import naming
from tests.ring.bad_inputs import BAD_INPUTS, GENERATE, MAX_BODY_MB, MESSAGES, Bad
from tests.ring.client import RingClient

pytestmark = pytest.mark.ring

GOOD: dict[str, Any] = {"prompt": [5, 6, 7, 8], "max_tokens": 4, "temperature": 0, "stream": False}

TIMEOUT_S = 90.0
NUM_AT_ONCE = 10
JSON_HEADERS = {"Content-Type": "application/json"}
POST = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Server:
    """A client that knows the answer to a good request and checks that it stays the same."""

    def __init__(self, url: str):
        self.client = httpx.Client(base_url=url, timeout=TIMEOUT_S)
        self._expected = self._ask()

    def _ask(self) -> tuple[str, list[int]]:
        reply = self.client.post(GENERATE, json=GOOD)
        assert reply.status_code == 200, reply.text
        return reply.json()["text"], reply.json()["token_ids"]

    def check(self) -> None:
        assert self._ask() == self._expected

    @property
    def address(self) -> tuple[str, int]:
        url = self.client.base_url
        assert url.port is not None
        return url.host, url.port


@pytest.fixture(scope="module")
def ring(plain_ring: RingClient) -> RingClient:
    return plain_ring


@pytest.fixture(scope="module")
def server(ring: RingClient) -> Iterator[Server]:
    server = Server(ring.url)
    yield server
    server.client.close()
    ring.wait_until_empty()


def test_there_are_many():
    assert len(BAD_INPUTS) >= 150
    assert len({(bad.path, bad.content, *bad.headers.items()) for bad in BAD_INPUTS}) == len(BAD_INPUTS)


@pytest.mark.parametrize(
    "first", range(0, len(BAD_INPUTS), NUM_AT_ONCE), ids=lambda first: ascii(BAD_INPUTS[first].name)
)
def test_each_is_refused_clearly_and_changes_nothing(server: Server, first: int):
    some = BAD_INPUTS[first : first + NUM_AT_ONCE]
    for bad in some:
        with naming(input=bad.name):
            check_refused(server, bad)
    with naming(inputs=[bad.name for bad in some]):
        server.check()


def check_refused(server: Server, bad: Bad) -> None:
    reply = server.client.post(bad.path, content=bad.content, headers={**JSON_HEADERS, **bad.headers})
    assert reply.status_code == bad.status, reply.text
    error = reply.json()["error"]
    if bad.path.startswith(MESSAGES):  # Anthropic's errors, which name the field in the message
        assert set(error) == {"message", "type"}
        assert (bad.param or "") in error["message"], error
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == bad.param, error
    assert bad.fragment in error["message"], error
    assert error["type"] == ("not_found_error" if bad.status == 404 else "invalid_request_error")
    assert len(error["message"]) < 400
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/generate", 405),
        ("PUT", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("POST", "/metrics", 405),
        ("GET", "/v1", 404),
        ("GET", "/v1/models/zzz", 404),
        ("GET", "/generate/", 404),
        ("POST", "/v1/images/generations", 404),
        ("GET", "/%2e%2e/etc/passwd", 404),
        ("GET", "/health/generate?timeout_s=nan", 400),
        ("GET", "/health/generate?timeout_s=-1", 400),
    ],
)
def test_a_path_or_method_that_there_is_not(server: Server, method: str, path: str, status: int):
    reply = server.client.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]
    assert ("allow" in reply.headers) == (status == 405)
    server.check()


@pytest.mark.parametrize("request_id", ["a b", "x" * 129, 'quote"', "tab\there"])
def test_an_unusable_request_id_is_replaced(server: Server, request_id: str):
    reply = server.client.get("/version", headers={"X-Request-Id": request_id})
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] not in ("", request_id)


def test_a_body_that_announces_too_much_is_refused_before_it_is_sent(server: Server):
    head = POST + b"Content-Length: %d\r\n\r\n" % (100 * 2**20)
    assert _exchange(server, head).startswith(b"HTTP/1.1 413 ")
    server.check()


def test_100_mb_in_chunks_are_not_read(server: Server):
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    num_sent = 0
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as client:
        client.sendall(head)
        try:
            for _ in range(100 * 16):
                client.sendall(chunk)
                num_sent += 1
        except OSError:
            pass
        else:
            assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert num_sent > MAX_BODY_MB * 16 - 1
    with httpx.Client(base_url=server.client.base_url, timeout=TIMEOUT_S) as client:
        reply = client.post(GENERATE, content=iter([b" " * 65536] * (MAX_BODY_MB * 16 + 1)), headers=JSON_HEADERS)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    server.check()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nbad name: x\r\n\r\n", 400),
        (
            POST + b"Content-Length: -5\r\n\r\n",
            400,
        ),
        (
            POST + b"Content-Length: five\r\n\r\n",
            400,
        ),
        (
            POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            400,
        ),
        (
            POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\x00\x00\x00\x00\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 500_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    ],
)
def test_what_is_no_http_is_refused(server: Server, sent: bytes, status: int):
    received = _exchange(server, sent)
    assert received.startswith(b"HTTP/1.1 %d " % status), received[:200]
    assert b'{"error":' in received
    server.check()


def test_half_a_request_and_nothing_more_harms_no_one(server: Server):
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as idle, idle.dup() as other:
        idle.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        other.shutdown(socket.SHUT_WR)
        server.check()


def _exchange(server: Server, sent: bytes) -> bytes:
    """Sends bytes and returns the reply, until the server closes the connection."""
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while piece := client.recv(65536):
                received += piece
        except ConnectionError:
            pass
        return received
