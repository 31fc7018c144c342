"""A frontend whose successor accepts connections: it finishes its own, and neither affects the other's requests."""

import asyncio
import contextlib
import http.client
import socket
from typing import cast

import pytest
from starlette.responses import PlainTextResponse

from frontend.front import Front
from frontend.http.server import HttpServer, make_event_loop
from messages.config.server import HttpConfig
from messages.control.processes import Drained, Leave, ProcessStatus, ProcessTable
from messages.ring.requests import DropBefore
from messages.ring.uids import UIDS_PER_BLOCK
from runtime.process import ProcessLink
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, step, table, table_after, wait_until


def table_with_old(incarnation: int) -> ProcessTable:
    """The table while the predecessor of frontend `incarnation` is still there."""
    old = ProcessStatus("frontend.old", "ready", pid=2, incarnation=incarnation - 1, uid_block=incarnation - 1)
    return ProcessTable((*table_after({"frontend": incarnation}).processes, old))


def is_refused(run: FrontendRun) -> bool:
    try:
        socket.create_connection(run.address, TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_leaving_frontend_finishes_what_is_open_and_accepts_nothing_new():
    with FrontendRun() as run:
        idle, silent = (http.client.HTTPConnection(*run.address, timeout=TIMEOUT_S) for _ in range(2))
        for connection in (idle, silent):
            connection.request("GET", "/version")
            connection.getresponse().read()
        fresh = http.client.HTTPConnection(*run.address, timeout=TIMEOUT_S)
        fresh.connect()
        stream = run.call()
        message = run.take_request()
        run.send(step([(message, 5, "a")]))
        assert "a" in stream.next_event()
        run.launcher.send("frontend", Leave(30.0))
        wait_until(lambda: is_refused(run))
        for connection in (idle, fresh):
            connection.request("GET", "/version")
            response = connection.getresponse()
            assert (response.status, response.headers["connection"]) == (200, "close")
            response.read()
        assert silent.sock.recv(10) == b""
        with pytest.raises(AssertionError, match="did not report"):
            run.launcher.wait_for("frontend", Drained, timeout_s=0.5)
        run.send(step([(message, 6, "b")]))
        run.send(step(finals=(final(message, "c", (7,)),)))
        assert "".join(event["text"] for event in stream.events()) == "bc"
        assert run.launcher.wait_for("frontend", Drained) == Drained(0)
        stream.leave()
        for connection in (idle, fresh, silent):
            connection.close()


class BareLink:
    """A link to no launcher. `order` makes the next message arrive, without a turn of the event loop."""

    is_stopping = False

    def __init__(self) -> None:
        self._control = socket.socketpair()
        self._messages: list[Leave] = []
        self.num_drained = 0

    def descriptors(self) -> tuple[int, int]:
        return self._control[0].fileno(), self._control[1].fileno()

    def order(self, message: Leave) -> None:
        self._messages.append(message)
        self._control[1].send(b" ")

    def receive_control(self) -> list[Leave]:
        messages, self._messages = self._messages, []
        if messages:
            self._control[0].recv(1)
        return messages

    def drained(self, num_unfinished: int) -> None:
        assert num_unfinished == 0
        self.num_drained += 1

    def close(self) -> None:
        for end in self._control:
            end.close()


class BareFront(Front):
    """Answers every request with 200."""

    def __init__(self, link: BareLink, listener: socket.socket):
        super().__init__(cast(ProcessLink, link), listener)
        self.begun = asyncio.Event()
        self._server = HttpServer(PlainTextResponse("ok"), HttpConfig(), self.begun.set, self._drain.check)

    def _num_unfinished(self) -> int:
        return 0

    def end(self) -> None:
        self._server.stop()


def test_a_connection_that_is_accepted_together_with_the_order_to_leave_is_still_answered():
    async def run() -> None:
        link = BareLink()
        with contextlib.closing(link), socket.create_server(("127.0.0.1", 0)) as listener:
            front = BareFront(link, listener)
            serving = asyncio.create_task(front.run())
            await front.begun.wait()
            with socket.create_connection(listener.getsockname()) as client:  # without a turn of the loop up to Leave
                link.order(Leave(30.0))
                client.setblocking(False)
                await asyncio.sleep(0.1)
                assert link.num_drained == 0
                await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                assert (await asyncio.get_running_loop().sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(TIMEOUT_S):
                while not link.num_drained:
                    await asyncio.sleep(0.02)
            front.end()
            await serving

    with asyncio.Runner(loop_factory=make_event_loop) as runner:
        runner.run(run())


def test_a_leaving_frontend_gives_up_at_its_deadline():
    with FrontendRun() as run:
        stream = run.call()
        run.take_request()
        run.launcher.send("frontend", Leave(0.2))
        assert run.launcher.wait_for("frontend", Drained) == Drained(1)
        stream.leave()


def test_a_successor_disowns_its_predecessors_requests_only_when_that_has_left():
    with FrontendRun(is_ready=False, incarnation=2) as run:
        run.show(table_with_old(2))
        run.round_trip()
        run.show(table_with_old(2))
        assert run.arrived() == []
        run.show(table_after({"frontend": 2}))
        assert run.take_drop_before() == DropBefore(2 * UIDS_PER_BLOCK)
        run.show(table_after({"frontend": 2}))
        run.round_trip()


def test_requests_wait_for_a_process_that_is_replaced_by_command():
    with FrontendRun() as run:
        awaited = [
            ProcessStatus(status.name, "restarting", is_awaited=True) if status.name == "scheduler" else status
            for status in table().processes
        ]
        run.show(ProcessTable(tuple(awaited)))
        assert run.client.get("/health").json()["status"] == "ready"
        with run.call({"stream": False}) as call:
            assert run.take_request().attempt == 0
            run.show(table_after({"scheduler": 2}))
            again = run.take_request()
            assert again.attempt == 1
            run.send(final(again, "ok", (1,)))
            assert call.json()["text"] == "ok"
