"""The ASGI application: routes, access checks, error replies, and one access log line per request."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from frontend.errors import OPENAI_ERRORS, VERSION, no_such_path
from frontend.http.access import AccessRules
from frontend.http.endpoint import Endpoint
from frontend.http.responses import error_reply
from frontend.links.processes import ProcessView
from frontend.metrics.http_requests import HttpRequests
from frontend.requests.body_budget import BodyBudget
from frontend.requests.trace import RequestTrace

START_GRACE_S = 0.25
"""How long a request waits at the start for the launcher's table: people may have read already that all is ready."""

log = logging.getLogger("sluice.frontend")


@dataclass(eq=False)
class App:
    """Replies 503 on every path except early endpoints until all processes have been ready once.

    `on_response` is called at the end of each response, even if it was cut off. Paths are accepted with and without
    `root_path`: some proxies strip it, others do not.
    """

    _endpoints: Sequence[Endpoint]
    _processes: ProcessView
    _rules: AccessRules
    _requests: HttpRequests
    _root_path: str = ""
    _: KW_ONLY
    bodies: BodyBudget | None = None
    on_response: Callable[[RequestTrace], None]

    def __post_init__(self):
        self._routes: list[tuple[Route, Endpoint]] = [(endpoint.route(), endpoint) for endpoint in self._endpoints]
        self._router = Router([route for route, _ in self._routes], redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root_path and scope["path"].startswith(f"{self._root_path}/"):
            scope["path"] = scope["path"].removeprefix(self._root_path)
        trace = RequestTrace(scope, self.bodies)
        scope["sluice.trace"], trace.receive = trace, receive
        scope["app"] = self
        endpoint = self._find_endpoint(trace.path)
        nearest = endpoint or self._find_nearest(trace.path)
        if nearest is not None and nearest.second_id_header:
            trace.id_names.append(nearest.second_id_header.encode())
        try:
            trace.client = self._rules.check("client" if endpoint is None else endpoint.access, scope)
            if not (self._processes.has_started or (endpoint and endpoint.is_early)):
                await asyncio.sleep(START_GRACE_S)
                self._processes.check_ready()
            await self._router(scope, receive, send)
        except ClientDisconnect:
            pass
        except Exception as error:
            if trace.status:
                raise
            if isinstance(error, HTTPException) and error.status_code == 405 and endpoint is not None:
                error.headers = {"Allow": self._methods(endpoint)}
            elif isinstance(error, HTTPException) and error.status_code == 404 and nearest is not None:
                error = no_such_path(trace.path)
            form = nearest.error_form if nearest else OPENAI_ERRORS
            await error_reply(error, trace.method, trace.path, form)(scope, receive, send)
        finally:
            seconds = (time.monotonic_ns() - trace.received_ns) / 1e9
            self._requests.record(endpoint and endpoint.template, trace.method, trace.shown_status, seconds)
            self.on_response(trace)
            trace.write_line(is_quiet=endpoint is not None and endpoint.is_polled)

    def _methods(self, endpoint: Endpoint) -> str:
        """Returns the methods of all endpoints with the path of `endpoint`; the router knows only those of one."""
        routes = [route for route, other in self._routes if other.path == endpoint.path]
        return ", ".join(sorted({method for route in routes for method in route.methods or ()}))

    def _find_nearest(self, path: str) -> Endpoint | None:
        """Returns the endpoint that a client with a wrong base URL meant by an unknown path, or its parent."""
        meant = path.removeprefix(VERSION) if path.startswith(2 * VERSION) else VERSION + path
        while meant.startswith(f"{VERSION}/"):
            endpoint = self._find_endpoint(meant)
            if endpoint is not None:
                return endpoint
            meant = path = path.rpartition("/")[0]
        return None

    def _find_endpoint(self, path: str) -> Endpoint | None:
        """Returns the endpoint for `path`, regardless of the method."""
        for route, endpoint in self._routes:
            if route.path_regex.match(path):
                return endpoint
        return None
