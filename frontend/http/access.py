"""Who may use an endpoint: hosts, origins, keys and, for the operator's endpoints, the client's machine."""

import ipaddress
import re
from collections.abc import Collection, Iterable

from msgspec.structs import replace
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Scope

from frontend.errors import forbidden
from frontend.http.endpoint import Access
from frontend.http.keys import Keys
from frontend.requests.client import Client, address_of
from messages.config.server import HttpConfig
from messages.errors import BootError, quoted

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_ENTRY = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9_-][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing (RFC 9110, 9.2.1), and browsers send them without an Origin for any page, such as an `<img>`."""

CORS_MAX_AGE_S = 600
RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")
)
EXPOSED_HEADERS = ("X-Request-Id", "Request-Id", "Retry-After", *RATE_HEADERS)
DEFAULT_PORTS = {"http": ":80", "https": ":443"}

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+")

FORWARDED = frozenset({b"forwarded", b"via", b"x-real-ip"})
FORWARDED_PREFIX = b"x-forwarded-"
"""Headers that proxies add; the socket's peer is then the proxy instead of the client."""


class AllowedHosts:
    """On loopback, a server accepts addresses, `localhost` and its subdomains, and the listed names.

    On other addresses it accepts any host unless some are listed. An address is always allowed: only names can be
    rebound. A listed `*.example.org` means all names below `example.org`, `*` every host.
    """

    def __init__(self, listed: Iterable[str], bound_address: str):
        """Raises `BootError` if an entry of `listed` is not a host name. The server listens on `bound_address`."""
        names = [entry.lower().rstrip(".") for entry in listed if _check_entry(entry)]
        self._allows_any = "*" in names or (not names and not is_loopback(bound_address))
        self._names = {"localhost", *(name for name in names if not name.startswith("*."))}
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*.")))

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `RequestError` (403) if a `Host` is not allowed. Browsers always send one, so none is fine."""
        if self._allows_any:
            return
        for name, value in headers:
            if name == b"host" and not self._is_allowed(host := value.decode("latin-1")):
                raise forbidden(
                    f"the host {quoted(host)} is not allowed: if it is a name of this server, start the "
                    "server with --allowed-hosts and this name",
                    code="host_not_allowed",
                )

    def _is_allowed(self, host: str) -> bool:
        name = host_name(host)
        return name is not None and (name in self._names or name.endswith(self._suffixes) or _is_address(name))


def host_name(host: str) -> str | None:
    """Returns the name or address in a `Host`, in lower case and without its port; `None` if it is malformed."""
    found = _HOST.fullmatch(host)
    return found[1].lower().removesuffix(".") if found else None


def is_loopback(address: str) -> bool:
    """True if a socket address (IPv4, IPv6, or IPv4 in IPv6) is a loopback address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0].removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") else name)
    except ValueError:
        return False
    return True


def _check_entry(entry: str) -> bool:
    if not _ENTRY.fullmatch(entry):
        raise BootError(f"--allowed-hosts: {entry!r} is not a host name (without scheme, port and path), *.NAME or *")
    return True


class AllowedOrigins:
    """The server's own origin (scheme and `Host` of the request) and the listed ones; `*` means any.

    Behind a proxy that terminates TLS or changes `Host`, browsers see a different origin, which must be listed.
    """

    def __init__(self, listed: Iterable[str]):
        """Raises `BootError` if an entry of `listed` is not an origin."""
        self._listed = tuple(_normal(origin) for origin in listed)

    def check(self, method: str, scheme: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `RequestError` (403) for a state-changing request by a page of another origin.

        Programs send no `Origin` and are not refused. If there are several, each is checked.
        """
        if method in SAFE_METHODS or "*" in self._listed:
            return
        for origin in find_foreign(scheme, headers):
            if origin.lower() not in self._listed:
                raise forbidden(
                    f"web pages of the origin {quoted(origin)} may not do this: list it in "
                    "--cors-allow-origins, even the server's own origin if a proxy terminates TLS or changes Host",
                    code="origin_not_allowed",
                )

    def with_cors(self, app: ASGIApp) -> ASGIApp:
        """Returns `app` with CORS headers for the listed origins, or unchanged if there are none."""
        if not self._listed:
            return app
        return CORSMiddleware(
            app,
            allow_origins=self._listed,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            max_age=CORS_MAX_AGE_S,
        )


def find_foreign(scheme: str, headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Returns each `Origin` of a request other than the server's own; programs send none."""
    headers = list(headers)
    own = {_own_origin(scheme, value.decode("latin-1")) for name, value in headers if name == b"host"}
    origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
    return [origin for origin in origins if origin.lower() not in own]


def _own_origin(scheme: str, host: str) -> str | None:
    """Returns the origin as browsers write it: in lower case, without the scheme's default port."""
    if host_name(host) is None:
        return None
    return f"{scheme}://{host.lower().removesuffix(DEFAULT_PORTS.get(scheme, ''))}"


def _normal(origin: str) -> str:
    normal = origin.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(normal):
        raise BootError(f"--cors-allow-origins: {origin!r} is not an origin (such as https://example.org:8443) or *")
    return normal


class AccessRules:
    """The checks of a request's head, which precede any work for it and any reply to it."""

    def __init__(self, http: HttpConfig, keys: Keys, bound_address: str):
        """Raises `BootError` if a flag in `http` has an invalid host or origin."""
        self.keys = keys
        self._is_private = http.is_private
        self._hosts = AllowedHosts(http.allowed_hosts, bound_address)
        self.origins = AllowedOrigins(http.cors_allow_origins)

    def check(self, access: Access, scope: Scope) -> Client:
        """Returns who sends the request. Raises `RequestError`: 403, or 401 if a key is missing or wrong."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._hosts.check(headers)
        self.origins.check(scope["method"], scope["scheme"], headers)
        if access == "operator":
            check_is_local(scope["client"], scope["scheme"], headers)
        client = self.keys.check(access, headers)
        if client.name:
            return client
        return replace(client, name=address_of(scope["client"], headers, is_private=self._is_private))


def check_is_local(client: tuple[str, int] | None, scheme: str, headers: Collection[tuple[bytes, bytes]]) -> None:
    """Raises `RequestError` (403) for clients on another machine, behind a proxy, or on a foreign web page."""
    if not is_local(client, scheme, headers):
        raise forbidden("this is only for programs on the server's own machine, not through a proxy", code="not_local")


def is_local(client: tuple[str, int] | None, scheme: str, headers: Collection[tuple[bytes, bytes]]) -> bool:
    """True for programs on this machine: no proxy has added a header, and no foreign web page sends the request."""
    if client is None or not is_loopback(client[0]) or find_foreign(scheme, headers):
        return False
    return not any(name in FORWARDED or name.startswith(FORWARDED_PREFIX) for name, _ in headers)
