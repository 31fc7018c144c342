"""The process `frontend` of a server of several models: it passes each request on to the server of its model."""

import asyncio
import socket
from functools import partial
from math import inf

from prometheus_client.registry import Collector

from extras.keys.metrics import KeyCollector
from extras.keys.part import open_meter
from extras.keys.usage_api import UsageApi, using
from extras.models.config import ModelsConfig
from extras.models.endpoints import RouterApi, forwarding, serving
from extras.models.forward import Forwarder
from extras.models.lists import ModelLists, make_lists
from extras.models.loads import Loads
from extras.models.messages import ModelReport, Models, ToHost, WatchModels
from extras.models.metrics import RouterMetrics, make_metrics
from extras.models.model_keys import ModelKeys
from extras.models.model_table import ModelTable
from extras.models.ollama_lists import OllamaLists, make_ollama_lists
from extras.models.residency import Residency
from extras.models.upstream import Upstreams
from frontend.front import Ending, Front, serve
from frontend.http.access import AccessRules
from frontend.http.app import App
from frontend.http.server import HttpServer
from frontend.links.processes import ProcessView
from frontend.metrics.http_requests import HttpRequests
from frontend.requests.body_budget import BodyBudget
from frontend.requests.trace import RequestTrace
from messages.channels import AskClient
from messages.control.admin import Answer
from messages.control.processes import FrontendReport, ProcessTable
from runtime.process import ProcessLink, run_process

BODIES = 16
"""The memory of all bodies together, in largest bodies."""


class ModelRouter(Front):
    def __init__(self, link: ProcessLink, listener: socket.socket, rules: AccessRules):
        super().__init__(link, listener)
        config = link.config
        self._settings = ModelsConfig.of(config)
        self._processes = ProcessView(has_started=True)
        self._host: AskClient[Models] = AskClient(link.run_dir.socket("models"), Models)
        self._readers[self._host.fileno()] = self._follow_host
        self._upstreams = Upstreams()
        self._table = ModelTable(self._upstreams)
        residency = Residency(int((self._settings.models_memory_gb or inf) * 2**30), inf)
        unknown = {entry.name: ModelReport(entry.name) for entry in self._settings.entries}
        self._table.reports = unknown
        residency.update(Models(tuple(unknown.values())))
        hold_s = config.run.restart_hold_s
        max_waiting = config.scheduling.max_queued_requests
        self._loads = Loads(self._settings.entries, self._table, residency, self._ask, hold_s, max_waiting)
        keys = ModelKeys(config, self._settings.entries)
        rules.keys = keys.any
        self._forwarder = Forwarder(self._table, self._loads, keys, config.http, hold_s)
        requests = HttpRequests()
        api = RouterApi(link, self._table, self._loads, self._forwarder, self._processes, self.gauges)
        meter = open_meter(config)
        others: list[Collector] = [requests] if meter is None else [requests, KeyCollector(meter)]
        metrics = RouterMetrics(self._table, self._loads, residency, self._upstreams, others)
        endpoints = [
            *serving(api),
            *make_lists(ModelLists(self._table, residency, self._settings.entries)),
            *make_ollama_lists(OllamaLists(self._table, residency, self._settings.entries)),
            *make_metrics(metrics),
            *(using(UsageApi(meter)) if meter is not None else ()),
            *forwarding(self._forwarder),
        ]
        app = App(
            endpoints,
            self._processes,
            rules,
            requests,
            self._forwarder.root_path,
            bodies=BodyBudget(config.http.max_body_bytes * BODIES, bool),
            on_response=self._record_response,
        )
        self._server = HttpServer(rules.with_cors(app), config.http, self._start, self._tick)
        link.profiler.loop = None  # an event loop has no turns that could be seen from here

    def gauges(self) -> dict[str, float]:
        """Sizes that must return to zero when nothing runs."""
        return {
            "requests": len(self._forwarder.open),
            "on_hold": self._loads.num_waiting,
            "connections": self._server.num_connections,
        }

    def _start(self) -> None:
        self._link.ready()

    def _tick(self) -> None:
        self._link.beat(self.gauges, frontend=FrontendReport(self._loads.num_waiting))
        self._ask(WatchModels())  # the host may be another one now
        self._loads.advance()
        self._drain.check()
        self._follow_launcher()

    def _ask(self, message: ToHost) -> None:
        if self._host.socket.closed:  # requests are cancelled at the very end
            return
        self._host.ask(message)
        asyncio.get_running_loop().call_soon(self._follow_host)  # its channel is edge-triggered

    def _follow_host(self) -> None:
        for models in self._host.receive():
            if models.models:  # none: the host has only begun
                self._loads.update(models)

    def _accept(self, message: ProcessTable | Answer) -> None:
        if isinstance(message, ProcessTable):
            self._processes.update(message)

    def _record_response(self, trace: RequestTrace) -> None:
        trace.body.release()
        self._drain.check()

    def _wind_down(self, how: Ending) -> None:
        self._forwarder.is_draining = self._forwarder.is_draining or how == "drain"
        self._loads.is_leaving = True
        for watcher in self._forwarder.watchers:
            watcher.end()

    def _close(self) -> None:
        self._host.close()

    def _num_unfinished(self) -> int:
        return len(self._forwarder.open)


def main() -> int:
    return run_process("frontend", partial(serve, ModelRouter))


if __name__ == "__main__":
    raise SystemExit(main())
