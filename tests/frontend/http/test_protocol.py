"""Bytes on a connection: each request is answered in turn, or refused and the connection closed."""

import asyncio
import json
import re
from typing import Any

import pytest

from frontend.http.protocol import HEAD_TIMEOUT_S, LINGER_S
from tests.frontend.http.memory_connection import MemoryConnection, exchange

GET = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
JDK_OFFER = (
    b"POST /a HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 16\r\nHost: 127.0.0.1:8000\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\nContent-Type: application/json\r\n\r\n"
)
"""As the JDK's HTTP client sends it by default."""


def answers(received: bytes) -> list[tuple[int, Any]]:
    """Returns status and body of each response; each has a content length."""
    found: list[tuple[int, Any]] = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None, head
        body, received = received[: int(length[1])], received[int(length[1]) :]
        found.append((int(head.split(b" ")[1]), json.loads(body)))
    return found


def statuses(received: bytes) -> list[int]:
    return [status for status, _ in answers(received)]


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_an_offer_to_upgrade_is_ignored_and_the_body_is_kept(size: int):
    body = b'{"prompt": "hi"}'
    data = JDK_OFFER + body + GET + JDK_OFFER + body
    posted = (200, ["POST", "/a", body.decode()])
    assert answers(exchange(*pieces_of(data, size))) == [posted, (200, ["GET", "/b", ""]), posted]


@pytest.mark.parametrize("size", [1, 9, 10_000])
@pytest.mark.parametrize(
    "offer",
    [
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"Upgrade: websocket\r\nconnection: keep-alive, upgrade\r\nSec-WebSocket-Version: 13\r\n",
        b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\nUpgrade: h2c\r\n",
    ],
)
def test_an_offer_next_to_a_chunked_body_and_without_a_body(offer: bytes, size: int):
    chunked = b"POST /a HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n"
    empty = b"GET /c HTTP/1.1\r\nHost: x\r\n%s\r\n"
    received = answers(exchange(*pieces_of(chunked % offer + empty % offer + GET, size)))
    assert received == [(200, ["POST", "/a", "abcde"]), (200, ["GET", "/c", ""]), (200, ["GET", "/b", ""])]


def test_the_application_sees_no_offer():
    seen: list[dict[bytes, bytes]] = []

    async def app(scope, receive, send):
        seen.append(dict(scope["headers"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def run() -> None:
        connection = MemoryConnection(app)
        await connection.feed([JDK_OFFER, b"x" * 16])
        await connection.end()

    asyncio.run(run())
    assert b"upgrade" not in seen[0]
    assert seen[0][b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([b"Transfer-Encoding: gzip"], 501),
        ([b"Transfer-Encoding: gzip, chunked"], 501),
        ([b"Transfer-Encoding: xchunked"], 501),
        ([b"Transfer-Encoding: identity"], 501),
        ([b"Transfer-Encoding: chunked, gzip"], 400),
        ([b"Transfer-Encoding: chunked, chunked"], 400),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], 400),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"], 400),
        ([b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"], 501),
        ([b"Transfer-Encoding:"], 400),
        ([b"Transfer-Encoding: ,chunked"], 400),
        ([b"Transfer-Encoding: chunked;q=1"], 400),
        ([b"Transfer-Encoding: \x0bchunked"], 400),
        ([b"Transfer-Encoding : chunked"], 400),
        ([b"Transfer-Encoding:\r\n chunked"], 400),
        ([b'Transfer-Encoding: "chunked"'], 400),
        ([b"Transfer-Encoding: chunked", b"Content-Length: 5"], 400),
        ([b"Content-Length: 5", b"Transfer-Encoding: chunked"], 400),
        ([b"Content-Length: 5", b"Content-Length: 5"], 400),
        ([b"Content-Length: 5, 5"], 400),
        ([b"Content-Length: +5"], 400),
        ([b"Content-Length: 5 5"], 400),
        ([b"Content-Length: 0x5"], 400),
        ([b"Content-Length:"], 400),
        ([b"Content-Length: 99999999999999999999999999"], 400),
        ([b"A: b\r\n folded"], 400),
        ([b"A: \x00"], 400),
        ([b"A: b\rc"], 400),
        ([b"A: b\nc: d"], 400),
        ([b"no colon"], 400),
        ([b": no name"], 400),
        ([b"Host: y"], 400),
        ([b"Host: x"], 400),
    ],
    ids=repr,
)
def test_a_head_in_doubt_is_refused_and_nothing_behind_it_is_read(fields: list[bytes], status: int):
    lines = [b"POST /a HTTP/1.1", b"Host: x", *fields, b"", b"0\r\n\r\n"]
    received = exchange(GET + b"\r\n".join(lines) + GET)
    assert statuses(received) == [200, status]
    assert b"connection: close\r\n" in received


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nX: y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET /a HTTP/1.0\r\n\r\n", 200),
        (b"GET /a HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost:\r\n\r\n", 200),
        (b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\nHost: x\n\n", 400),
        (b"GET /a\r\n\r\n", 505),
        (b"GET /a HTTP/0.9\r\n\r\n", 505),
        (b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /a HTTP/1.2\r\nHost: x\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET  /a HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n", 400),
    ],
    ids=repr,
)
def test_request_lines_and_hosts(head: bytes, status: int):
    received = exchange(head)
    assert statuses(received) == [status]
    if status != 200:
        assert set(answers(received)[0][1]["error"]) == {"message", "type", "param", "code"}


def test_an_absolute_target_names_the_host():
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope, receive, send):
        seen.extend([(scope["raw_path"], scope["query_string"]), *scope["headers"]])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def run() -> None:
        connection = MemoryConnection(app)
        await connection.feed([b"GET HTTP://real:80?q=1 HTTP/1.1\r\nHost: other\r\n\r\n"])
        await connection.end()

    asyncio.run(run())
    assert seen == [(b"/", b"q=1"), (b"host", b"real:80")]


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\r\nabcde\r\n0\r\nContent-Length: 9\r\n\r\n",
        b"zz\r\n",
        b"-1\r\n",
        b"0x5\r\nabcde\r\n",
        b"5\nabcde\r\n",
        b"5\r\nabcdeXX0\r\n\r\n",
        b"ffffffffffffffffff\r\n",
        b"5 \r\nabcde\r\n",
        b"5\r\nab",
    ],
)
def test_a_chunked_body_that_breaks_is_refused(chunks: bytes):
    received = exchange(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert statuses(received) == [400]


def test_heads_chunk_extensions_and_trailers_are_bounded():
    chunked = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert statuses(exchange(b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000)) == [431]
    assert statuses(exchange(b"GET /a HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 50_000 + b"\r\n")) == [431]
    assert statuses(exchange(b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000 + b"\r\n\r\n")) == [200]
    assert statuses(exchange(b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 65_600 + b"\r\n\r\n")) == [431]
    assert statuses(exchange(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")) == [431]
    assert statuses(exchange(chunked + b"1;" + b"x" * 200_000)) == [400]
    assert statuses(exchange(chunked + b"1;xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\na\r\n" * 20_000)) == [400]
    assert statuses(exchange(chunked + b"0\r\nX: " + b"x" * 200_000)) == [400]
    assert statuses(exchange(chunked + b"1\r\na\r\n" * 50_000 + b"0\r\n\r\n")) == [200]


def test_trailers_do_not_pass_for_headers():
    seen: list[bytes] = []

    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        seen.extend(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def run() -> None:
        connection = MemoryConnection(app)
        head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        await connection.feed([head + b"0\r\nAuthorization: Bearer k\r\n\r\n"])
        await connection.end()

    asyncio.run(run())
    assert seen == [b"host", b"transfer-encoding"]


def test_the_body_of_an_earlier_request_does_not_count_as_head():
    body = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
    assert statuses(exchange(body + GET[:10], GET[10:])) == [200, 200]


def test_a_refusal_waits_for_the_responses_before_it():
    received = answers(
        exchange(GET + b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab" + b"garbage\r\n\r\n")
    )
    assert received[:2] == [(200, ["GET", "/b", ""]), (200, ["POST", "/c", "ab"])]
    assert [status for status, _ in received[2:]] == [400]


def test_nothing_is_read_behind_a_request_that_closes():
    assert statuses(exchange(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET)) == [200]
    assert statuses(exchange(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\ngarbage\r\n\r\n")) == [200]
    assert statuses(exchange(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET)) == [200]


def test_a_response_of_unknown_length_is_chunked_only_where_the_client_knows_chunks():
    chunked = exchange(b"GET /chunked HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = chunked.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b'17\r\n["GET", "/chunked", ""]\r\n0\r\n\r\n'
    plain = exchange(b"GET /chunked HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    head, _, body = plain.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"\r\nconnection: close" in head
    assert body == b'["GET", "/chunked", ""]'


def test_a_response_to_head_has_no_body():
    for path in (b"/a", b"/chunked"):
        received = exchange(b"HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        assert received.startswith(b"HTTP/1.1 200 ")
        assert received.endswith(b"\r\n\r\n")


def test_a_body_is_requested_where_the_client_waits():
    head = b"POST /a HTTP/1.%d\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    received = exchange(head % 1, b"ab")
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert exchange(head % 1 + b"ab").startswith(b"HTTP/1.1 200 ")
    assert exchange(head % 0, b"ab").startswith(b"HTTP/1.1 200 ")


def test_a_client_that_waits_and_is_not_asked_may_not_be_read_on():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def run() -> bytes:
        connection = MemoryConnection(app)
        head = b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GET)
        await connection.feed([head, GET, GET])
        await connection.end()
        return bytes(connection.transport.written)

    received = asyncio.run(run())
    assert received.count(b"HTTP/1.1") == 1
    assert b"connection: close" in received


def test_what_is_read_ahead_of_its_turn_is_bounded():
    async def run() -> None:
        continue_after = asyncio.Event()

        async def app(scope, receive, send):
            await continue_after.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        connection = MemoryConnection(app)
        num_sent = 0
        while not connection.transport.is_paused:
            await connection.feed([GET * 100])
            num_sent += 100
            assert num_sent < 10_000
        continue_after.set()
        await connection.settle()
        assert not connection.transport.is_paused
        assert connection.transport.written.count(b"HTTP/1.1 204 ") == num_sent

    asyncio.run(run())


def test_an_application_that_fails_is_an_error_of_ours_in_json():
    async def app(scope, receive, send):
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        raise ValueError("secret")

    async def run(path: bytes) -> bytes:
        connection = MemoryConnection(app)
        await connection.feed([b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path, GET])
        assert connection.transport.is_closing()
        return bytes(connection.transport.written)

    early, late = asyncio.run(run(b"/early")), asyncio.run(run(b"/late"))
    assert statuses(early) == [500]
    assert b"secret" not in early
    assert late.endswith(b"content-length: 9\r\n\r\n")


def test_a_connection_on_which_nothing_comes_is_closed():
    async def run() -> None:
        connection = MemoryConnection()
        await connection.feed([GET, b"GET /"])
        began_s = asyncio.get_running_loop().time()
        connection.protocol.tick(began_s + HEAD_TIMEOUT_S - 1)
        assert not connection.transport.is_closing()
        connection.protocol.tick(began_s + HEAD_TIMEOUT_S + 1)
        assert connection.transport.is_closing()
        refused = MemoryConnection()
        await refused.feed([b"garbage\r\n\r\n"])
        assert not refused.transport.is_closing()
        refused.protocol.tick(asyncio.get_running_loop().time() + LINGER_S + 1)
        assert refused.transport.is_closing()

    asyncio.run(run())
