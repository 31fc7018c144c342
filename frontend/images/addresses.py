"""Which URLs the operator allows, and which addresses a host may have."""

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from frontend.images.parts import BAD_URL, bad_image
from messages.config.images import HOST
from messages.errors import quoted

PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 8192
SAFE = "/%:=&?~+!$,;'@()*[]"
"""Characters of a path and query that are not escaped."""

_HOST = re.compile(r"[\w.:-]{1,253}\Z")

UNICAST = ipaddress.ip_network("2000::/3")
REFUSED = [
    *map(ipaddress.ip_network, ("192.88.99.0/24", "168.63.129.16/32")),
    *map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),
]
"""6to4, Teredo, documentation, and a metadata service that has a public address."""

Address = tuple[socket.AddressFamily, tuple[str | int | bytes, ...]]


class Target(NamedTuple):
    """A URL that may be fetched, in parts."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class UrlRules:
    """Reads `--image-urls`: `none`, `public`, or hosts, each with a port if it is not that of the scheme."""

    def __init__(self, allowed: str):
        self._is_public = allowed == "public"
        entries = "" if allowed in ("none", "public") else allowed
        self._hosts = {_read_entry(found) for found in re.finditer(HOST, entries)}

    def check(self, url: str, where: str) -> Target:
        """Returns a URL's parts. Raises `RequestError` (400)."""
        if not self._is_public and not self._hosts:
            text = "images are not fetched from URLs (--image-urls none): send a data: URL"
            raise bad_image(where, text, "not_supported")
        target = _read_url(url, where)
        if not self._is_listed(target):
            text = f"images are not fetched from {quoted(target.authority)} (--image-urls)"
            raise bad_image(where, text, "not_supported")
        return target

    def resolve(self, target: Target, where: str) -> Sequence[Address]:
        """Returns the addresses of the host, which are all public, unless the operator has listed an address.

        Raises `RequestError` (400).
        """
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise bad_image(where, "the URL's host is not known", BAD_URL) from None
        addresses = [(family, address) for family, _, _, _, address in found]
        is_listed = not self._is_public and _is_address(target.host)
        if not is_listed and not all(is_public(str(address[0])) for _, address in addresses):
            raise bad_image(where, "the URL's host has an address that is not public", BAD_URL)
        return addresses

    def _is_listed(self, target: Target) -> bool:
        if self._is_public:
            return target.port in PORTS.values()
        port = None if target.port == PORTS[target.scheme] else target.port
        return (target.host, port) in self._hosts or (target.host, target.port) in self._hosts


def is_http(url: str) -> bool:
    return url[:8].lower().startswith(("http://", "https://"))


def is_public(address: str) -> bool:
    """True if the address belongs to a host on the internet, and stands for no address of another kind."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if any(parsed in network for network in REFUSED if network.version == parsed.version):
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        return parsed in UNICAST
    return parsed.is_global and not (parsed.is_multicast or parsed.is_reserved)


def _read_url(url: str, where: str) -> Target:
    try:
        parts = urlsplit(url)
        host, port = _plain_host(parts.hostname or ""), parts.port
    except (ValueError, UnicodeError):
        host, port = "", None
        parts = None
    if parts is None or len(url) > MAX_URL_CHARS or not _HOST.match(host):
        raise bad_image(where, f"{quoted(url)} is not a valid URL", BAD_URL)
    if parts.username is not None or parts.password is not None:
        raise bad_image(where, "a URL of an image must not have credentials", BAD_URL)
    path = quote(parts.path or "/", safe=SAFE) + (f"?{quote(parts.query, safe=SAFE)}" if parts.query else "")
    return Target(parts.scheme, host, PORTS[parts.scheme] if port is None else port, path)


def _read_entry(found: re.Match[str]) -> tuple[str, int | None]:
    return _plain_host(found[1].strip("[]")), int(found[2]) if found[2] else None


def _plain_host(host: str) -> str:
    """Raises `UnicodeError` for a name that cannot be a host's."""
    return host if _is_address(host) else host.rstrip(".").encode("idna").decode("ascii").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
