"""Requests are aborted when their clients leave, however the connection ends."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, step, wait_until

WHOLE = b'{"prompt": "hi", "stream": false}'
STREAM = b'{"prompt": "hi"}'


def post(body: bytes, version: bytes = b"1.1", fields: bytes = b"Host: localhost\r\n") -> bytes:
    head = b"POST /generate HTTP/%s\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (version, fields, len(body)) + body


@pytest.fixture
def client(server: FrontendRun) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as client:
        yield client


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


def end_aborted(server: FrontendRun, message) -> None:
    """The abort must come without any token's being written."""
    assert server.take_abort().uid == message.uid
    server.send(step(finals=(final(message, finish_reason="abort"),)))
    wait_until(lambda: server.gauge("requests") == 0)


@pytest.mark.parametrize("how", ["close", "reset", "shut down"])
@pytest.mark.parametrize("body", [WHOLE, STREAM])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_has_gone_aborts_before_anything_is_written(
    server: FrontendRun, client: socket.socket, version: bytes, body: bytes, how: str
):
    client.sendall(post(body, version))
    message = server.take_request()
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "shut down":
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"", "the connection ends without an answer"
    client.close()
    end_aborted(server, message)


def test_a_client_that_goes_amid_its_stream_aborts(server: FrontendRun, client: socket.socket):
    client.sendall(post(STREAM))
    message = server.take_request()
    server.send(step([(message, 1, "a")]))
    assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    client.close()
    end_aborted(server, message)


def relay(source: socket.socket, target: socket.socket) -> None:
    """Passes on bytes and ends, as a TCP proxy does: it learns from a failing write that its client has gone."""
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
        return
    source.close()
    target.close()


def test_a_client_that_has_gone_behind_a_relay_aborts(server: FrontendRun):
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=TIMEOUT_S))
        near = stack.enter_context(listener.accept()[0])
        far = stack.enter_context(socket.create_connection(server.address))
        for ends in ((near, far), (far, near)):
            threading.Thread(target=relay, args=ends, daemon=True).start()
        client.sendall(post(WHOLE))
        message = server.take_request()
        client.close()
        end_aborted(server, message)


def test_a_stream_to_a_client_of_http_1_0(server: FrontendRun, client: socket.socket):
    client.sendall(post(STREAM, b"1.0", b""))
    message = server.take_request()
    server.send(step([(message, 1, "a")]))
    received = client.recv(65536)
    server.send(step([(message, 2, "b")]))
    server.send(step(finals=(final(message, "c", (3,)),)))
    received += read_all(client)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /ver",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ],
)
def test_half_a_request_and_no_more_is_refused(server: FrontendRun, client: socket.socket, sent: bytes):
    client.sendall(sent)
    client.shutdown(socket.SHUT_WR)
    received = read_all(client)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"the connection ended within a request" in received
    server.round_trip()


def test_a_connection_that_ends_idle_is_closed(server: FrontendRun, client: socket.socket):
    client.shutdown(socket.SHUT_WR)
    assert read_all(client) == b""
