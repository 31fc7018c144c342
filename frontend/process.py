"""The frontend's main loop: one event loop that HTTP, the ring and the launcher's messages wake."""

import socket
import time
from functools import partial

from frontend.api.assembly import Watching, make_app, make_endpoints, make_metrics
from frontend.api.operate.admin import AdminApi, administering
from frontend.api.operate.health import HealthApi
from frontend.api.operate.requests import RequestsApi
from frontend.extras import FrontendContext, make_parts
from frontend.front import Ending, Front, serve
from frontend.http.access import AccessRules
from frontend.http.field_names import UnknownFields
from frontend.http.server import HttpServer
from frontend.http.stream import OpenStreams
from frontend.links.launcher import Launcher
from frontend.parsing.model_format import load_model_format
from frontend.recovery.continuation import Continuations
from frontend.recovery.missing_machines import MissingMachines
from frontend.service import Service
from messages.control.admin import AdminCommand, Answer, DrainServer, WriteState
from messages.control.processes import ProcessTable
from messages.ring.requests import FramesLost
from runtime.process import ProcessLink, run_process
from runtime.profiling import Part

TABLE_TIMEOUT_S = 1.0
"""The launcher sends the table right after the welcome."""

DRAIN_TIMEOUT_S = 60.0
"""For the answer to a command that ends this process too."""


class Frontend(Front):
    """All parts of the process, and what wakes them."""

    def __init__(self, link: ProcessLink, listener: socket.socket, rules: AccessRules):
        super().__init__(link, listener)
        self._service = Service(link)
        self._continuations = Continuations(
            self._service.registry,
            self._service.ring,
            self._service.router,
            self._service.processes,
            link.uid_block,
            link.config.scheduling.max_num_seqs,
        )
        self._missing_machines = MissingMachines(
            link.config.run.restart_hold_s,
            self._service.processes,
            self._service.registry,
            self._service.end_without_ring,
        )
        self._readers[self._service.ring.fileno()] = self._receive_replies
        self._launcher = Launcher(self._ask)
        self._streams = OpenStreams(link.config.http.sse_keepalive_s)
        model_format = load_model_format(link.config)
        end = lambda: self._launcher.ask(DrainServer(), DRAIN_TIMEOUT_S)  # noqa: E731
        unknown = UnknownFields(is_strict=link.config.http.strict_fields)
        context = FrontendContext(link, self._service, self._streams, model_format, unknown, end)
        self._parts = make_parts(context)
        metrics = make_metrics(
            self._service,
            self._continuations,
            self._parts,
            self.gauges,
        )
        watching = Watching(HealthApi(self._service, self.gauges), RequestsApi(self._service, self._streams), metrics)
        link.register(WriteState, watching.write_files)
        endpoints = [
            *make_endpoints(context, watching),
            *(endpoint for part in self._parts for endpoint in part.endpoints),
            *administering(AdminApi(self._launcher, link.config.http.port)),
        ]
        for part in self._parts:
            part.begin(endpoints)
        app = make_app(self._service, endpoints, rules)
        self._server = HttpServer(app, link.config.http, self._start, self._tick)
        link.profiler.loop = None  # an event loop has no turns that could be seen from here
        link.profiler.parts.append(Part(self._service.ring, "receive", lambda *_: "take replies"))
        self._streams.on_end = self._drain.check

    def _close(self) -> None:
        self._service.images.close()
        self._service.ring.close()
        self._service.peers.close()
        for part in self._parts:
            part.close()

    def _prepare(self) -> None:
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
        self._service.ring.receive(self._record_lost)
        self._continuations.release_suspects()
        self._drain.check()

    def _record_lost(self, lost: FramesLost) -> None:
        self._continuations.record_lost(lost)
        self._service.queries.repeat()

    def _accept(self, message: ProcessTable | Answer) -> None:
        if isinstance(message, Answer):
            self._launcher.accept(message)
            return
        self._service.processes.update(message)
        self._continuations.follow()
        self._missing_machines.follow()
        self._service.images.store.clear_gone(self._service.processes.living_blocks(self._link.uid_block))
        self._service.hold.follow()
        self._service.queries.follow()
        self._service.peers.follow()

    def _ask(self, ask_id: int, command: AdminCommand) -> None:
        self._link.ask(ask_id, command)
        self._follow_launcher()

    def _wind_down(self, how: Ending) -> None:
        self._service.admission.is_draining = self._service.admission.is_draining or how == "drain"
        for part in self._parts:
            part.stop()
        if how == "stop":
            self._service.shut_down()

    def _num_unfinished(self) -> int:
        return max(len(self._service.registry), self._streams.num_unwritten())


def main() -> int:
    return run_process("frontend", partial(serve, Frontend))
