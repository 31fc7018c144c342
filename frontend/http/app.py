"""The ASGI application: routes, who may use them, what exceptions become, and one access line for each request."""

import logging
from collections.abc import Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from frontend.http.endpoint import Endpoint
from frontend.http.keys import ApiKeys
from frontend.http.responses import error_reply
from frontend.metrics.http_requests import HttpRequests
from frontend.processes import ProcessView
from frontend.trace import Trace

HEALTH_PATH = "/health"
CORS_MAX_AGE_S = 600
EXPOSED_HEADERS = ("X-Request-Id", "Retry-After")

log = logging.getLogger("sluice.frontend")


class App:
    """Answers 503 on every path but `/health` until all processes have been ready once.

    Paths are taken with `root_path` before them and without: proxies differ in whether they take it off.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        processes: ProcessView,
        keys: ApiKeys,
        requests: HttpRequests,
        root_path: str = "",
    ):
        self._router = Router([endpoint.route() for endpoint in endpoints], redirect_slashes=False)
        self._templates: dict[Any, str] = {endpoint.run: endpoint.template for endpoint in endpoints}
        self._requests = requests
        self._processes = processes
        self._keys = keys
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root_path and scope["path"].startswith(f"{self._root_path}/"):
            scope["path"] = scope["path"].removeprefix(self._root_path)
        trace = Trace(scope)
        scope["sluice.trace"] = trace
        scope["app"] = self
        try:
            self._keys.check(trace.path, scope["headers"])
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
            self._requests.note(self._find_template(scope), trace.method, trace.shown_status)
            trace.write_line()

    def _find_template(self, scope: Scope) -> str | None:
        """Returns the template of the endpoint that is asked for, also where the request did not get to it."""
        for route in self._router.routes if "endpoint" not in scope else ():
            match, found = route.matches(scope)
            if match is not Match.NONE:
                return self._templates.get(found["endpoint"])
        return self._templates.get(scope.get("endpoint"))


def allow_origins(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Returns `app` as the web pages of `origins` may use it; without any, as it is."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=EXPOSED_HEADERS,
        max_age=CORS_MAX_AGE_S,
    )
