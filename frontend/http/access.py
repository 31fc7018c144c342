"""Who may use an endpoint: hosts, origins, keys and, for the operator's endpoints, the client's machine."""

from collections.abc import Collection

from starlette.types import ASGIApp, Scope

from frontend.errors import forbidden
from frontend.http.endpoint import Access
from frontend.http.hosts import AllowedHosts, is_loopback
from frontend.http.keys import Keys
from frontend.http.origins import AllowedOrigins, find_foreign
from messages.config.server import HttpConfig

FORWARDED = frozenset({b"forwarded", b"via", b"x-real-ip"})
FORWARDED_PREFIX = b"x-forwarded-"
"""Headers that proxies add; the socket's peer is then the proxy instead of the client."""


class AccessRules:
    """The checks of a request's head, which precede any work for it and any reply to it."""

    def __init__(self, http: HttpConfig, keys: Keys, bound_address: str):
        """Raises `BootError` if a flag in `http` has an invalid host or origin."""
        self.keys = keys
        self._hosts = AllowedHosts(http.allowed_hosts, bound_address)
        self._origins = AllowedOrigins(http.cors_allow_origins)

    def check(self, access: Access, scope: Scope) -> None:
        """Raises `RequestError`: 403, or 401 if a key is missing or wrong."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._hosts.check(headers)
        self._origins.check(scope["method"], scope["scheme"], headers)
        if access == "operator":
            check_is_local(scope["client"], scope["scheme"], headers)
        self.keys.check(access, headers)

    def with_cors(self, app: ASGIApp) -> ASGIApp:
        """Returns `app` with CORS headers for the allowed origins."""
        return self._origins.with_cors(app)


def check_is_local(client: tuple[str, int] | None, scheme: str, headers: Collection[tuple[bytes, bytes]]) -> None:
    """Raises `RequestError` (403) for clients on another machine, behind a proxy, or on a foreign web page."""
    is_local = client is not None and is_loopback(client[0]) and not find_foreign(scheme, headers)
    for name, _ in headers:
        if name in FORWARDED or name.startswith(FORWARDED_PREFIX):
            is_local = False
    if not is_local:
        raise forbidden("this is only for programs on the server's own machine, not through a proxy", code="not_local")
