"""The ASGI application: routes, what exceptions become, and one access line for each request."""

import logging

from starlette.requests import ClientDisconnect
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from frontend.aborts import AbortApi
from frontend.generate import GenerateApi
from frontend.health import HealthApi
from frontend.info import InfoApi
from frontend.processes import ProcessView
from frontend.responses import error_reply
from frontend.trace import Trace

HEALTH_PATH = "/health"

log = logging.getLogger("sluice.frontend")


def make_routes(generate: GenerateApi, health: HealthApi, aborts: AbortApi, info: InfoApi) -> list[Route]:
    """Returns the route table; an endpoint returns an ASGI response or raises."""
    return [
        Route("/generate", generate.generate, methods=["POST"]),
        Route("/abort_request", aborts.abort_request, methods=["POST"]),
        Route(HEALTH_PATH, health.health, methods=["GET"]),
        Route("/health/generate", health.generate, methods=["GET"]),
        Route("/ping", health.ping, methods=["GET"]),
        Route("/v1/models", info.models, methods=["GET"]),
        Route("/v1/models/{id:path}", info.model, methods=["GET"]),
        Route("/version", info.version, methods=["GET"]),
        Route("/server_info", info.server_info, methods=["GET"]),
    ]


class App:
    """Answers 503 on every path but `/health` until all processes have been ready once."""

    def __init__(self, routes: list[Route], processes: ProcessView):
        self._router = Router(routes, redirect_slashes=False)
        self._processes = processes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = Trace(scope)
        scope["sluice.trace"] = trace
        scope["app"] = self
        try:
            if not self._processes.has_started and trace.path != HEALTH_PATH:
                self._processes.check_ready()
            await self._router(scope, receive, send)
        except ClientDisconnect:
            pass
        except Exception as error:
            if trace.status:
                raise
            await error_reply(error, trace.method, trace.path)(scope, receive, send)
        finally:
            trace.write_line()
