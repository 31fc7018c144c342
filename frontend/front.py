"""The main loop of a process that serves HTTP: its server, and the launcher's messages, which it follows."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Literal

from frontend.drain import DrainWatch
from frontend.http.access import AccessRules
from frontend.http.keys import load_keys, load_named_keys
from frontend.http.protocol import LOCAL_PEER
from frontend.http.server import (
    HttpServer,
    base_url,
    check_certificates,
    make_event_loop,
    open_listener,
    raise_descriptor_limit,
)
from messages.control.admin import Answer
from messages.control.processes import Drain, Leave, ProcessTable
from runtime.process import ProcessLink

Ending = Literal["drain", "leave", "stop"]

log = logging.getLogger("sluice.frontend")


class Front:
    """A subclass makes `_server` and adds its own parts to the methods that do nothing here."""

    _server: HttpServer

    def __init__(self, link: ProcessLink, listener: socket.socket):
        self._link = link
        self._listener = listener
        self._readers: dict[int, Callable[[], None]] = {}
        """What reads from each descriptor of the subclass."""
        self._drain = DrainWatch(self._count_open, self._report_drained)

    async def run(self) -> None:
        """Serves until the link stops the process."""
        loop = asyncio.get_running_loop()
        control, wakeup = self._link.descriptors()
        readers = {control: self._follow_launcher, wakeup: partial(self._clear_wakeup, wakeup), **self._readers}
        for descriptor, receive in readers.items():
            loop.add_reader(descriptor, receive)
        self._follow_launcher()
        self._prepare()
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            for descriptor in readers:
                loop.remove_reader(descriptor)
            self._close()

    def _prepare(self) -> None:
        """Is called before the first connection is accepted."""

    def _accept(self, message: ProcessTable | Answer) -> None:
        """Is called with the launcher's messages that do not end anything."""

    def _wind_down(self, how: Ending) -> None:
        """Ends long-running work that can continue with another process; with "drain", refuses new requests from now
        on, with "stop", ends all open ones. May be called again."""

    def _close(self) -> None:
        """Is called when the server has ended."""

    def _num_unfinished(self) -> int:
        """Returns the number of open requests, including streams that are not yet written to their end."""
        raise NotImplementedError

    def _clear_wakeup(self, descriptor: int) -> None:
        os.read(descriptor, 4096)
        self._follow_launcher()

    def _follow_launcher(self) -> None:
        """Follows the launcher. Its channel is edge-triggered, so this also runs after each message to it."""
        for message in self._link.receive_control():
            match message:
                case Drain(timeout_s):
                    self._begin_drain(timeout_s)
                case Leave(timeout_s):
                    self._begin_leaving(timeout_s)
                case _:
                    self._accept(message)
        if self._link.is_stopping:
            self._wind_down("stop")
            self._server.stop()

    def _begin_drain(self, timeout_s: float) -> None:
        log.info("draining: %d requests are open, %g s left", self._num_unfinished(), timeout_s)
        self._wind_down("drain")
        self._server.close_idle()
        self._drain.begin(timeout_s)

    def _count_open(self) -> int:
        """Returns the number of unfinished requests.

        While this process leaves, it counts the connections that may still send a request.
        """
        return max(self._num_unfinished(), self._server.num_connections if self._server.is_leaving else 0)

    def _begin_leaving(self, timeout_s: float) -> None:
        log.info(
            "another frontend takes over: %d connections are open, %g s left", self._server.num_connections, timeout_s
        )
        self._wind_down("leave")
        self._server.leave()
        # A connection that was accepted just before is counted only when its own callback has run.
        asyncio.get_running_loop().call_soon(self._drain.begin, timeout_s)

    def _report_drained(self) -> None:
        num_answering = self._server.num_answering if self._server.is_leaving else 0
        self._link.drained(max(self._num_unfinished(), num_answering))
        self._follow_launcher()


def serve(make: Callable[[ProcessLink, socket.socket, AccessRules], Front], link: ProcessLink) -> None:
    """Runs what `make` returns. Raises `BootError` if its port, keys or certificates cannot be used."""
    if not link.stand_by():
        return
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    raise_descriptor_limit()
    keys = load_keys(link.config.http, load_named_keys(link.config))
    check_certificates(link.config.http)
    listener, is_own = open_listener(link.config.http)
    is_unix = listener.family == socket.AF_UNIX
    host, port = (LOCAL_PEER if is_unix else listener.getsockname())[:2]
    rules = AccessRules(link.config.http, keys, host)
    address = f"unix:{listener.getsockname()}" if is_unix else base_url(link.config.http, host, port)
    if is_own:
        link.run_dir.address_file.write_text(address, encoding="utf-8")
    log.info("listening on %s", address)

    async def run() -> None:
        await make(link, listener, rules).run()

    with asyncio.Runner(loop_factory=make_event_loop) as runner:
        runner.run(run())
