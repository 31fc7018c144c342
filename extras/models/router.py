"""The process `frontend` of a server of several models: it passes each request on to the server of its model.

The router's own endpoints: its health, loads and unloads by command, the pages, and everything that it forwards.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Annotated, cast

import msgspec
from msgspec import Meta
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.routing import Route

from extras.keys.metrics import KeyCollector
from extras.keys.part import open_meter
from extras.keys.usage_api import UsageApi, using
from extras.live.page_files import PageApi, showing_pages
from extras.models.chosen_model import find_model
from extras.models.config import ModelsConfig
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
from extras.ollama.errors import OLLAMA_ERRORS
from frontend.api.anthropic.endpoints import ID_HEADER
from frontend.api.anthropic.errors import ANTHROPIC_ERRORS
from frontend.api.operate.info import VersionReply
from frontend.front import Ending, Front, serve
from frontend.http.access import AccessRules
from frontend.http.app import App
from frontend.http.body import BodyDecoder
from frontend.http.endpoint import Endpoint
from frontend.http.responses import JsonReply
from frontend.http.server import HttpServer
from frontend.links.processes import ProcessHealth, ProcessView, ServerState
from frontend.metrics.http_requests import HttpRequests
from frontend.requests.body_budget import BodyBudget
from frontend.requests.trace import RequestTrace
from messages import VERSION
from messages.channels import AskClient
from messages.control.admin import Answer
from messages.control.processes import FrontendReport, ProcessTable
from runtime.process import ProcessLink, run_process


class ModelHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model in `/health`: its state, how far its load is, and why the latest one failed."""

    state: str
    phase: str = ""
    fraction: float | None = None
    error: str = ""
    pid: int = 0


class RouterHealth(msgspec.Struct, frozen=True):
    status: ServerState
    processes: dict[str, ProcessHealth]
    models: dict[str, ModelHealth]


class ModelName(msgspec.Struct, frozen=True):
    model: Annotated[str, Meta(min_length=1, description="a string, one of the names in /models")]


class Success(msgspec.Struct, frozen=True):
    success: bool = True


class Forwarding(Endpoint, frozen=True):
    """All methods of a path."""

    def route(self) -> Route:
        route = super().route()
        route.methods = cast("set[str]", None)
        return route


@dataclass(eq=False)
class RouterApi:
    """`gauges` are the router's own sizes, for `/health`."""

    _link: ProcessLink
    _table: ModelTable
    _loads: Loads
    _forwarder: Forwarder
    _processes: ProcessView
    _gauges: Callable[[], dict[str, float]]
    _names: BodyDecoder[ModelName] = field(default_factory=lambda: BodyDecoder(ModelName))

    async def health(self, request: Request) -> JsonReply:
        """200 if the router serves, whether or not models are loaded."""
        is_draining = self._forwarder.is_draining
        name, link = self._link.name, self._link
        num_restarts = self._processes.num_restarts(name)
        own = ProcessHealth("ready", os.getpid(), link.incarnation, 0.0, self._gauges(), num_restarts)
        models = {
            name: ModelHealth(*self._table.state(name), self._table.reports[name].pid) for name in self._table.names
        }
        health = RouterHealth("draining" if is_draining else "ready", {**self._processes.health(), name: own}, models)
        return JsonReply(health, 503 if is_draining else 200)

    async def version(self, request: Request) -> JsonReply:
        return JsonReply(VersionReply(VERSION))

    async def load(self, request: Request) -> JsonReply:
        """Begins to load a model. Raises `RequestError`: 404 for an unknown one, 400 for one that does not fit."""
        self._loads.load(await self._read_name(request))
        return JsonReply(Success())

    async def unload(self, request: Request) -> JsonReply:
        """Begins to unload a model. Raises `RequestError` (404)."""
        self._loads.unload(await self._read_name(request))
        return JsonReply(Success())

    async def _read_name(self, request: Request) -> str:
        body = (await self._names.receive(request)).fields
        await self._forwarder.wait_known()
        name = find_model(self._table, body.model, request)
        self._forwarder.keys.check(name, request.scope["headers"])
        return name


def serving(api: RouterApi) -> list[Endpoint]:
    """Returns the endpoints that the router answers itself, besides the lists of models and the metrics."""
    example = {"one": {"model": "m"}}
    command = partial(Endpoint, tag="models", reply=Success, body=ModelName, errors=(404,))
    public = partial(Endpoint, access="public", is_polled=True)
    return [
        public("/health", api.health, "The state of each process and model", RouterHealth),
        public("/ping", api.health, "The same as `/health`", RouterHealth),
        Endpoint("/version", api.version, "The version of the server", VersionReply, access="public"),
        command("/models/load", api.load, "Load a model", examples=example),
        command("/models/unload", api.unload, "Unload a model when its requests have ended", examples=example),
        *showing_pages(PageApi()),
    ]


def forwarding(forwarder: Forwarder) -> list[Endpoint]:
    """Returns the endpoints for all other paths. Errors have the form of the API that the path belongs to."""
    forwarded = partial(Forwarding, run=forwarder.run, summary="Answered by the server of a model", is_described=False)
    return [
        forwarded("/api/{path:path}", error_form=OLLAMA_ERRORS),
        *(
            forwarded(path, error_form=ANTHROPIC_ERRORS, second_id_header=ID_HEADER)
            for path in ("/v1/messages", "/v1/messages/{path:path}")
        ),
        forwarded("/{path:path}"),
    ]


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
        self._server = HttpServer(rules.origins.with_cors(app), config.http, self._start, self._tick)
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
