"""Connections carry one request after another, and every way in which one can fail has its name."""

import asyncio
import socket

import pytest

from benchmarks.load.answer import LOST, OK, TIMED_OUT, UNREACHABLE, StreamResult
from benchmarks.load.connection import Connection, ConnectionPool, Target, parse_url
from messages.errors import UsageError
from tests.benchmarks.scripted_server import (
    DONE,
    SSE_HEAD,
    Script,
    chunk,
    event,
    last_event,
    scripted_server,
    stream_of,
)

GOOD = Script(stream_of(event([1]), last_event([2], 2), DONE))


async def run_one(pool: ConnectionPool, body: bytes = b"{}") -> StreamResult:
    result = StreamResult()
    await pool.stream(body, result)
    return result


def test_requests_share_a_connection() -> None:
    async def scenario() -> None:
        async with scripted_server(GOOD, GOOD) as server:
            pool = ConnectionPool(server.target)
            outcomes = [(await run_one(pool, body)).outcome for body in (b'{"a": 1}', b'{"b": 2}')]
            pool.close()
            assert outcomes == [OK, OK]
            assert server.num_connections == 1
            assert server.bodies == [b'{"a": 1}', b'{"b": 2}']

    asyncio.run(scenario())


def test_concurrent_requests_have_connections_of_their_own() -> None:
    async def scenario() -> None:
        async with scripted_server(GOOD, GOOD, GOOD) as server:
            pool = ConnectionPool(server.target)
            results = await asyncio.gather(*(run_one(pool) for _ in range(3)))
            pool.close()
            assert [result.outcome for result in results] == [OK] * 3
            assert server.num_connections == 3

    asyncio.run(scenario())


def test_a_cancellation_just_as_the_answer_ends_leaves_no_open_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Connection] = []
    connect, wake = ConnectionPool._connect, Connection._wake

    async def connect_and_keep(pool: ConnectionPool) -> Connection:
        opened.append(await connect(pool))
        return opened[-1]

    async def scenario() -> None:
        async with scripted_server(GOOD) as server:
            pool = ConnectionPool(server.target)
            request = asyncio.create_task(run_one(pool))

            def wake_and_cancel(connection: Connection) -> None:
                wake(connection)
                request.cancel()

            monkeypatch.setattr(Connection, "_wake", wake_and_cancel)
            with pytest.raises(asyncio.CancelledError):
                await request
            pool.close()
            assert [connection.is_open for connection in opened] == [False]

    monkeypatch.setattr(ConnectionPool, "_connect", connect_and_keep)
    asyncio.run(scenario())


def test_a_server_that_leaves_in_mid_stream() -> None:
    async def scenario() -> None:
        async with scripted_server(Script([SSE_HEAD, chunk(event([1, 2]))], then="close"), GOOD) as server:
            pool = ConnectionPool(server.target)
            cut = await run_one(pool)
            assert (cut.outcome, cut.num_tokens) == (LOST, 2)
            assert (await run_one(pool)).outcome == OK
            pool.close()
            assert server.num_connections == 2

    asyncio.run(scenario())


def test_a_connection_that_the_server_closed_when_idle_is_not_used_again() -> None:
    async def scenario() -> None:
        closing = Script(GOOD.pieces, then="close")
        async with scripted_server(closing, GOOD) as server:
            pool = ConnectionPool(server.target)
            assert (await run_one(pool)).outcome == OK
            [connection] = pool._free
            async with asyncio.timeout(5):
                while connection.is_open:
                    await asyncio.sleep(0)
            assert (await run_one(pool)).outcome == OK
            pool.close()

    asyncio.run(scenario())


def test_a_stream_that_does_not_end_is_given_up() -> None:
    async def scenario() -> None:
        hanging = Script([SSE_HEAD, chunk(event([1]))], then="hang")
        async with scripted_server(hanging, GOOD, timeout_s=5.0) as server:
            pool = ConnectionPool(server.target)
            result = await run_one(pool)
            assert (result.outcome, result.num_tokens) == (TIMED_OUT, 1)
            assert (await run_one(pool)).outcome == OK, "on another connection"
            pool.close()

    asyncio.run(scenario())


def test_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = Target("127.0.0.1", unused.getsockname()[1])
        assert asyncio.run(run_one(ConnectionPool(target))).outcome == UNREACHABLE


def test_the_request_carries_length_and_key() -> None:
    head, _, body = Target("::1", 8000, api_key="secret").request("é".encode()).partition(b"\r\n\r\n")
    assert b"Content-Length: 2" in head
    assert b"Host: [::1]:8000" in head
    assert b"Authorization: Bearer secret" in head
    assert body == "é".encode()
    assert b"Authorization" not in Target("localhost", 1).request(b"")


def test_urls() -> None:
    assert parse_url("http://127.0.0.1:8000") == ("127.0.0.1", 8000)
    assert parse_url("http://host/") == ("host", 80)
    for url in (
        "https://host:1",
        "127.0.0.1:8000",
        "http://host:1/v1",
        "http://:80",
        "http://host:port",
        "http://h:99999",
    ):
        with pytest.raises(UsageError, match="--url"):
            parse_url(url)
