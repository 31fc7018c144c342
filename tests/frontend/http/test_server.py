"""Shutdown of the HTTP server: what it still writes and reads, and for how long."""

import asyncio
from typing import Any, cast

import pytest

from frontend.http import server as server_module
from frontend.http.server import NUM_LOOKS, HttpServer
from messages.config.server import HttpConfig


class Connection:
    """A connection whose client reads one byte of its response at each of the first `num_reads` checks."""

    def __init__(self, server: HttpServer, num_unsent_bytes: int, num_reads: int):
        self._server = server
        self._num_unsent_bytes = num_unsent_bytes
        self._num_reads = num_reads
        self.is_answering = True
        self.num_looks = 0
        server.server_state.connections.add(cast("Any", self))

    @property
    def num_unsent_bytes(self) -> int:
        self.num_looks += 1
        self._num_unsent_bytes -= self.num_looks <= self._num_reads
        if not self._num_unsent_bytes:
            asyncio.get_running_loop().call_soon(self._server.server_state.connections.discard, self)
        return self._num_unsent_bytes

    def shutdown(self) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> HttpServer:
    monkeypatch.setattr(server_module, "LOOK_S", 0.0)
    monkeypatch.setattr(server_module, "CLOSE_TIMEOUT_S", 60.0)
    server = HttpServer(cast("Any", None), HttpConfig(port=0), lambda: None, lambda: None)
    server.servers = []
    return server


def test_a_client_that_reads_gets_its_whole_response(server: HttpServer):
    Connection(server, 3 * NUM_LOOKS, 3 * NUM_LOOKS)
    asyncio.run(server.shutdown())
    assert not server.server_state.connections


def test_one_that_does_not_read_is_provided_up(server: HttpServer):
    stuck = Connection(server, 100, 7)
    asyncio.run(server.shutdown())
    assert server.server_state.connections
    assert stuck.num_looks == 7 + NUM_LOOKS


def test_no_connection_is_waited_for_longer_than_the_limit(server: HttpServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_module, "CLOSE_TIMEOUT_S", 0.0)
    reading = Connection(server, 1000, 1000)
    asyncio.run(server.shutdown())
    assert reading.num_looks == 0


def test_a_response_that_is_still_made_is_waited_for_and_then_cancelled(server: HttpServer):
    async def run() -> list[bool]:
        ends = [asyncio.create_task(asyncio.sleep(0.01)), asyncio.create_task(asyncio.sleep(3600.0))]
        for task in ends:
            server.server_state.tasks.add(task)
            task.add_done_callback(server.server_state.tasks.discard)
        await server.shutdown()
        await asyncio.wait(ends)
        return [task.cancelled() for task in ends]

    server_module.LOOK_S = 0.001  # `server` sets it back
    assert asyncio.run(run()) == [False, True]
