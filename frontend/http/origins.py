"""Which web pages may use the server: the `Origin` of state-changing requests, and CORS for reading replies."""

import re
from collections.abc import Iterable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from frontend.errors import forbidden
from frontend.http.hosts import MAX_SHOWN_CHARS, host_name
from messages.errors import BootError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing (RFC 9110, 9.2.1), and browsers send them without an Origin for any page, such as an `<img>`."""

CORS_MAX_AGE_S = 600
EXPOSED_HEADERS = ("X-Request-Id", "Request-Id", "Retry-After")
DEFAULT_PORTS = {"http": ":80", "https": ":443"}

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+")


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
                    f"web pages of the origin {origin[:MAX_SHOWN_CHARS]!r} may not do this: list it in "
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
