"""The frontend's main loop: one event loop that HTTP, the ring and the launcher's orders wake."""

import asyncio
import logging
import os
import socket

from frontend.aborts import AbortApi
from frontend.app import App, make_routes
from frontend.continuation import Continuations
from frontend.drain import DrainWatch
from frontend.generate import GenerateApi
from frontend.health import HealthApi
from frontend.info import InfoApi
from frontend.server import HttpServer, make_event_loop, open_listener, raise_descriptor_limit
from frontend.service import Service
from frontend.stream import OpenStreams
from messages.control import Drain, ProcessTable
from messages.process import ProcessLink, run_process

log = logging.getLogger("sluice.frontend")


class Frontend:
    """All parts of the process, and what wakes them."""

    def __init__(self, link: ProcessLink, listener: socket.socket):
        self._link = link
        self._listener = listener
        self._service = Service(link.config, link.run_dir, link.incarnation)
        self._continuations = Continuations(
            self._service.registry,
            self._service.ring,
            self._service.processes,
            link.config.scheduling.max_num_seqs,
        )
        self._streams = OpenStreams(link.config.http.sse_keepalive_s)
        routes = make_routes(
            GenerateApi(self._service, self._streams),
            HealthApi(self._service, self.gauges),
            AbortApi(self._service),
            InfoApi(link.config),
        )
        self._server = HttpServer(App(routes, self._service.processes), self._start, self._tick)
        self._drain = DrainWatch(self._service.registry, self._report_drained)

    async def run(self) -> None:
        """Serves until the link says stop."""
        loop = asyncio.get_running_loop()
        control, wakeup = self._link.descriptors()
        loop.add_reader(self._service.ring.fileno(), self._take_replies)
        loop.add_reader(control, self._take_orders)
        loop.add_reader(wakeup, self._take_wakeup, wakeup)
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            for descriptor in (self._service.ring.fileno(), control, wakeup):
                loop.remove_reader(descriptor)
            self._service.ring.close()

    def gauges(self) -> dict[str, float]:
        """Sizes of all that must return to zero when nothing runs."""
        return {
            **self._service.gauges(),
            **self._continuations.gauges(),
            "streams": len(self._streams),
            "connections": self._server.num_connections,
        }

    def _start(self) -> None:
        self._link.ready()
        self._take_replies()

    def _tick(self) -> None:
        self._link.beat(self.gauges)
        self._streams.tick()
        self._take_orders()

    def _take_replies(self) -> None:
        self._service.ring.take()
        self._continuations.release_suspects()
        self._drain.check()

    def _take_wakeup(self, descriptor: int) -> None:
        os.read(descriptor, 4096)
        self._take_orders()

    def _take_orders(self) -> None:
        """Follows the launcher. Its channel is edge-triggered, so this also runs after each message to it."""
        for order in self._link.take_orders():
            match order:
                case ProcessTable():
                    self._service.processes.update(order)
                    self._continuations.follow()
                case Drain(timeout_s):
                    self._begin_drain(timeout_s)
        if self._link.is_stopping:
            self._service.shut_down()
            self._server.stop()

    def _begin_drain(self, timeout_s: float) -> None:
        log.info("draining: %d requests are open, %g s left", len(self._service.registry), timeout_s)
        self._service.admission.is_draining = True
        self._server.close_idle()
        self._drain.begin(timeout_s)

    def _report_drained(self, num_unfinished: int) -> None:
        self._link.drained(num_unfinished)
        self._take_orders()


def serve(link: ProcessLink) -> None:
    """Runs the frontend. Raises `BootError` where its port is in use."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    raise_descriptor_limit()
    listener, is_own = open_listener(link.config.http)
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if is_own:
        link.run_dir.address_file.write_text(address, encoding="utf-8")
    log.info("listening on %s", address)

    async def run() -> None:
        await Frontend(link, listener).run()

    with asyncio.Runner(loop_factory=make_event_loop) as runner:
        runner.run(run())


def main() -> int:
    return run_process("frontend", serve)
