"""How the parts of the HTTP side fit together: the endpoints on their APIs, behind keys and the rules for web pages.

The endpoints that report a frontend's state, and their replies as files of a snapshot.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.types import ASGIApp

from frontend.api import routes
from frontend.api.answers.conversation import Conversations
from frontend.api.anthropic.endpoints import MessagesApi, messaging
from frontend.api.generate.generate import GenerateApi
from frontend.api.openai.chat import ChatApi
from frontend.api.openai.completions import CompletionApi
from frontend.api.operate.aborts import AbortApi
from frontend.api.operate.adapters import AdapterApi, adapting
from frontend.api.operate.cache import CacheApi
from frontend.api.operate.health import HealthApi
from frontend.api.operate.info import InfoApi
from frontend.api.operate.metrics import MetricsApi
from frontend.api.operate.requests import RequestsApi
from frontend.api.operate.tokens import TokensApi
from frontend.api.responses.endpoints import ResponsesApi
from frontend.api.responses.routes import responding
from frontend.extras import FrontendContext, FrontendPart
from frontend.http.access import AccessRules
from frontend.http.app import App
from frontend.http.endpoint import Endpoint
from frontend.http.openapi import OpenApiApi
from frontend.metrics.adapter_collector import AdapterCollector
from frontend.metrics.process_collector import ProcessCollector
from frontend.metrics.request_collector import RequestCollector
from frontend.recovery.continuation import Continuations
from frontend.service import Service
from messages import VERSION
from messages.control.admin import Acknowledged, ProcessResult, WriteState


class Watching(NamedTuple):
    """The endpoints that report the server's state, over HTTP and in snapshots."""

    health: HealthApi
    requests: RequestsApi
    metrics: MetricsApi

    def write_files(self, command: WriteState) -> ProcessResult:
        """Writes `health.json`, `requests.json` and `metrics`, for servers that may no longer answer over HTTP.

        Requests have their whole timelines, without their texts. Raises `OSError`.
        """
        directory = Path(command.directory)
        (directory / "health.json").write_bytes(msgspec.json.format(msgspec.json.encode(self.health.find_health())))
        found = self.requests.find_open().requests
        shown = b",\n".join(each.shown for each in found)
        (directory / "requests.json").write_bytes(b"[" + shown + b"]\n")
        (directory / "metrics").write_bytes(self.metrics.own_text())
        return Acknowledged(f"{len(found)} open requests")


def make_app(service: Service, endpoints: list[Endpoint], rules: AccessRules) -> ASGIApp:
    """Returns the application that serves `endpoints` and their description."""
    name = service.config.http.root_path.strip("/")
    root_path = f"/{name}" if name else ""
    description = OpenApiApi(endpoints, version=VERSION, root_path=root_path, keys=rules.keys)
    app = App(
        description.endpoints,
        service.processes,
        rules,
        service.http_requests,
        root_path,
        bodies=service.bodies,
        on_response=service.record_response,
    )
    return rules.origins.with_cors(app)


def make_endpoints(context: FrontendContext, watching: Watching) -> list[Endpoint]:
    """Returns the route table."""
    _, service, streams, model_format, unknown, _ = context
    conversations = Conversations(service, model_format)
    return [
        *routes.generating(
            GenerateApi(service, streams, unknown),
            CompletionApi(service, streams, unknown),
            ChatApi(service, streams, unknown, conversations),
        ),
        *responding(ResponsesApi(service, streams, unknown, conversations)),
        *messaging(MessagesApi(service, streams, unknown, conversations)),
        *routes.models(InfoApi(service.config, service.processes, model_format)),
        *routes.tokens(TokensApi(service, unknown, model_format)),
        *routes.watching(watching.health, watching.metrics),
        *routes.tracing(watching.requests, AbortApi(service, unknown)),
        *routes.caching(CacheApi(service, watching.requests, unknown)),
        *adapting(AdapterApi(service, unknown)),
    ]


def make_metrics(
    service: Service,
    continuations: Continuations,
    parts: Sequence[FrontendPart],
    gauges: Callable[[], dict[str, float]],
) -> MetricsApi:
    """Returns the metrics of requests and processes under the first name of the model.

    `parts` are those of extras, with their collectors; `gauges` are those of this process.
    """
    model_name = service.config.facts.served_names[0]
    requests = RequestCollector(
        model_name,
        service.metrics,
        service.admission,
        gauges,
        lambda: continuations.num_resubmitted,
    )
    adapters = AdapterCollector(service.config.model.num_lora_slots, service.registry)
    return MetricsApi(
        own=(requests, service.http_requests, adapters, *chain.from_iterable(part.collectors for part in parts)),
        shared=(
            ProcessCollector(service.config, service.processes),
            *chain.from_iterable(part.shared_collectors for part in parts),
        ),
        peers=service.peers if service.config.run.frontend_workers > 1 else None,
        own_name=lambda: service.name,
    )
