"""The router's own endpoints: its health, loads and unloads by command, the pages, and everything that it forwards."""

import os
from collections.abc import Callable
from functools import partial
from typing import Annotated, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.routing import Route

from extras.live.page_files import PageApi, showing_pages
from extras.models.chosen_model import find_model
from extras.models.forward import Forwarder
from extras.models.loads import Loads
from extras.models.model_table import ModelTable
from extras.ollama.errors import OLLAMA_ERRORS
from frontend.api.anthropic.endpoints import ID_HEADER
from frontend.api.anthropic.errors import ANTHROPIC_ERRORS
from frontend.api.operate.info import VersionReply
from frontend.http.body import BodyDecoder
from frontend.http.endpoint import Endpoint
from frontend.http.responses import JsonReply
from frontend.links.processes import ProcessHealth, ProcessView, ServerState
from messages import VERSION
from runtime.process import ProcessLink


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


class RouterApi:
    """`gauges` are the router's own sizes, for `/health`."""

    def __init__(
        self,
        link: ProcessLink,
        table: ModelTable,
        loads: Loads,
        forwarder: Forwarder,
        processes: ProcessView,
        gauges: Callable[[], dict[str, float]],
    ):
        self._link = link
        self._table = table
        self._loads = loads
        self._forwarder = forwarder
        self._keys = forwarder.keys
        self._processes = processes
        self._gauges = gauges
        self._names = BodyDecoder(ModelName)

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
        self._keys.check(name, request.scope["headers"])
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
