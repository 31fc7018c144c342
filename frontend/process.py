"""The frontend's main loop: one event loop that HTTP, the ring and the launcher's messages wake."""

import asyncio
import logging
import os
import socket
import time

from frontend.api.assembly import make_app, make_endpoints, make_metrics, make_watching
from frontend.api.operate.admin import AdminApi, administering
from frontend.drain import DrainWatch
from frontend.extras import FrontendContext, make_parts
from frontend.http.access import AccessRules
from frontend.http.keys import load_keys
from frontend.http.server import (
    HttpServer,
    base_url,
    check_certificates,
    make_event_loop,
    open_listener,
    raise_descriptor_limit,
)
from frontend.http.stream import OpenStreams
from frontend.links.launcher import Launcher
from frontend.parsing.model_format import load_model_format
from frontend.recovery.continuation import Continuations
from frontend.service import Service
from messages.control.admin import AdminCommand, Answer, DrainServer, WriteState
from messages.control.processes import Drain, Leave, ProcessTable
from messages.ring.requests import FramesLost
from runtime.process import ProcessLink, run_process
from runtime.profiling import Part

TABLE_TIMEOUT_S = 1.0
"""The launcher sends the table right after the welcome."""

DRAIN_TIMEOUT_S = 60.0
"""For the answer to a command that ends this process too."""

log = logging.getLogger("sluice.frontend")


class Frontend:
    """All parts of the process, and what wakes them."""

    def __init__(self, link: ProcessLink, listener: socket.socket, rules: AccessRules):
        self._link = link
        self._listener = listener
        self._service = Service(link)
        self._continuations = Continuations(
            self._service.registry,
            self._service.ring,
            self._service.router,
            self._service.processes,
            link.uid_block,
            link.config.scheduling.max_num_seqs,
        )
        self._launcher = Launcher(self._ask)
        self._streams = OpenStreams(link.config.http.sse_keepalive_s)
        model_format = load_model_format(link.config)
        end = lambda: self._launcher.ask(DrainServer(), DRAIN_TIMEOUT_S)  # noqa: E731
        context = FrontendContext(link, self._service, self._streams, model_format, end)
        self._parts = make_parts(context)
        self._service.on_part = self._continuations.replace
        metrics = make_metrics(
            self._service,
            self._continuations,
            [collector for part in self._parts for collector in part.collectors],
            self.gauges,
        )
        watching = make_watching(self._service, self._streams, metrics, self.gauges)
        link.register(WriteState, watching.write_files)
        endpoints = [
            *make_endpoints(self._service, self._streams, model_format, watching),
            *(endpoint for part in self._parts for endpoint in part.endpoints),
            *administering(AdminApi(self._launcher, link.config.http.port)),
        ]
        for part in self._parts:
            part.begin(endpoints)
        app = make_app(self._service, endpoints, rules)
        self._server = HttpServer(app, link.config.http, self._start, self._tick)
        link.profiler.loop = None  # an event loop has no turns that could be seen from here
        link.profiler.parts.append(Part(self._service.ring, "receive", lambda *_: "take replies"))
        self._drain = DrainWatch(self._count_open, self._report_drained)
        self._streams.on_end = self._drain.check

    async def run(self) -> None:
        """Serves until the link stops the process."""
        loop = asyncio.get_running_loop()
        control, wakeup = self._link.descriptors()
        loop.add_reader(self._service.ring.fileno(), self._receive_replies)
        loop.add_reader(control, self._follow_launcher)
        loop.add_reader(wakeup, self._clear_wakeup, wakeup)
        self._follow_launcher()
        self._wait_for_table()
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            for descriptor in (self._service.ring.fileno(), control, wakeup):
                loop.remove_reader(descriptor)
            self._service.ring.close()
            self._service.peers.close()
            for part in self._parts:
                part.close()

    def _wait_for_table(self) -> None:
        """A frontend that replaces another serves at once, so it must know the others before its first connection."""
        deadline_s = time.monotonic() + TABLE_TIMEOUT_S
        while self._link.incarnation > 1 and not (self._service.processes.is_known or self._link.is_stopping):
            if time.monotonic() >= deadline_s:
                return
            self._link.wait(TABLE_TIMEOUT_S / 10)
            self._follow_launcher()

    def gauges(self) -> dict[str, float]:
        """Sizes that must return to zero when nothing runs, and sizes of data that is kept for clients."""
        return {
            **self._service.gauges(),
            **self._continuations.gauges(),
            "streams": len(self._streams),
            "connections": self._server.num_connections,
            **{name: value for part in self._parts for name, value in part.gauges().items()},
        }

    def _start(self) -> None:
        self._link.ready()
        self._receive_replies()

    def _tick(self) -> None:
        quiet = self._service.find_quiet()
        self._link.beat(self.gauges, frontend=self._continuations.report(len(self._service.hold), quiet))
        self._streams.tick()
        self._service.ring.tidy(self._service.registry.is_open)
        self._drain.check()
        for part in self._parts:
            part.tick()
        self._follow_launcher()

    def _receive_replies(self) -> None:
        self._service.ring.receive(self._note_lost)
        self._continuations.release_suspects()
        self._drain.check()

    def _note_lost(self, lost: FramesLost) -> None:
        self._continuations.note_lost(lost)
        self._service.queries.repeat()

    def _clear_wakeup(self, descriptor: int) -> None:
        os.read(descriptor, 4096)
        self._follow_launcher()

    def _follow_launcher(self) -> None:
        """Follows the launcher. Its channel is edge-triggered, so this also runs after each message to it."""
        for message in self._link.receive_control():
            match message:
                case ProcessTable():
                    self._service.processes.update(message)
                    self._continuations.follow()
                    self._service.hold.follow()
                    self._service.queries.follow()
                    self._service.peers.follow()
                case Answer():
                    self._launcher.accept(message)
                case Drain(timeout_s):
                    self._begin_drain(timeout_s)
                case Leave(timeout_s):
                    self._begin_leaving(timeout_s)
        if self._link.is_stopping:
            self._end_unasked()
            self._service.shut_down()
            self._server.stop()

    def _ask(self, ask_id: int, command: AdminCommand) -> None:
        self._link.ask(ask_id, command)
        self._follow_launcher()

    def _begin_drain(self, timeout_s: float) -> None:
        log.info("draining: %d requests are open, %g s left", len(self._service.registry), timeout_s)
        self._service.admission.is_draining = True
        self._end_unasked()
        self._server.close_idle()
        self._drain.begin(timeout_s)

    def _end_unasked(self) -> None:
        """Ends long-running work that can continue with another frontend."""
        for part in self._parts:
            part.stop()

    def _count_open(self) -> int:
        """Returns the number of open requests, including streams that are not yet written to their end.

        While this process leaves, it counts the connections that may still send a request.
        """
        return max(self._num_unfinished(), self._server.num_connections if self._server.is_leaving else 0)

    def _num_unfinished(self) -> int:
        return max(len(self._service.registry), self._streams.num_unwritten())

    def _begin_leaving(self, timeout_s: float) -> None:
        log.info(
            "another frontend takes over: %d connections are open, %g s left", self._server.num_connections, timeout_s
        )
        self._end_unasked()
        self._server.leave()
        self._drain.begin(timeout_s)

    def _report_drained(self) -> None:
        num_answering = self._server.num_answering if self._server.is_leaving else 0
        self._link.drained(max(self._num_unfinished(), num_answering))
        self._follow_launcher()


def serve(link: ProcessLink) -> None:
    """Runs the frontend. Raises `BootError` if its port, keys or certificates cannot be used."""
    if not link.stand_by():
        return
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    raise_descriptor_limit()
    keys = load_keys(link.config.http)
    check_certificates(link.config.http)
    listener, is_own = open_listener(link.config.http)
    host, port = listener.getsockname()[:2]
    rules = AccessRules(link.config.http, keys, host)
    address = base_url(link.config.http, host, port)
    if is_own:
        link.run_dir.address_file.write_text(address, encoding="utf-8")
    log.info("listening on %s", address)

    async def run() -> None:
        await Frontend(link, listener, rules).run()

    with asyncio.Runner(loop_factory=make_event_loop) as runner:
        runner.run(run())


def main() -> int:
    return run_process("frontend", serve)
