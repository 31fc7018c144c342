"""Which `Host` a request may name: the defence against DNS rebinding, where a page's own name leads to this machine."""

import ipaddress
import re
from collections.abc import Iterable

from frontend.errors import forbidden
from messages.errors import BootError

MAX_SHOWN_CHARS = 100

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_ENTRY = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9_-][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")


class AllowedHosts:
    """Listening on loopback, a server answers to addresses, `localhost` and names below it, and to those listed.

    Listening elsewhere it answers to any host, unless some are listed. An address is always allowed: only a name can
    be rebound. A listed `*.example.org` stands for all names below `example.org`, `*` for every host.
    """

    def __init__(self, listed: Iterable[str], bound_address: str):
        """Raises `BootError` where one of `listed` is no host name. `bound_address` is where the server listens."""
        names = [entry.lower().rstrip(".") for entry in listed if _check_entry(entry)]
        self._allows_any = "*" in names or (not names and not is_loopback(bound_address))
        self._names = {"localhost", *(name for name in names if not name.startswith("*."))}
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*.")))

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `RequestError` (403) where a `Host` is not allowed. None at all is no page's: browsers send one."""
        if self._allows_any:
            return
        for name, value in headers:
            if name == b"host" and not self._is_allowed(host := value.decode("latin-1")):
                raise forbidden(
                    f"the host {host[:MAX_SHOWN_CHARS]!r} is not allowed: start the server with --allowed-hosts and "
                    "this name, if it is one of the server's",
                    code="host_not_allowed",
                )

    def _is_allowed(self, host: str) -> bool:
        name = host_name(host)
        return name is not None and (name in self._names or name.endswith(self._suffixes) or _is_address(name))


def host_name(host: str) -> str | None:
    """Returns the name or address in a `Host`, in lower case and without its port; `None` where it is not sound."""
    found = _HOST.fullmatch(host)
    return found[1].lower().removesuffix(".") if found else None


def is_loopback(address: str) -> bool:
    """Tells whether a socket's address, IPv4, IPv6 or IPv4 in IPv6, never leaves this machine."""
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
        raise BootError(f"--allowed-hosts: {entry!r} is no host name (without scheme, port and path), nor *.NAME or *")
    return True
