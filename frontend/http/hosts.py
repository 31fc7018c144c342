"""The allowed `Host` values: a defence against DNS rebinding, in which a page's own name resolves to this machine."""

import ipaddress
import re
from collections.abc import Iterable

from frontend.errors import forbidden
from messages.errors import BootError

MAX_SHOWN_CHARS = 100

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_ENTRY = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9_-][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")


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
                    f"the host {host[:MAX_SHOWN_CHARS]!r} is not allowed: if it is a name of this server, start the "
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
