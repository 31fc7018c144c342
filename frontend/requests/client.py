"""Who sends a request: what the scheduler shares between, and what limits, restricts and counts it."""

from collections.abc import Iterable

import msgspec

MAX_NAME_BYTES = 64


class Client(msgspec.Struct, frozen=True):
    """The holder of a key with a name or, without such keys, an address."""

    name: str = ""
    share: int = 1
    """Its part of each step relative to other clients'."""


INTERNAL = Client()
"""The server itself."""


def client_at(peer: tuple[str, int] | None, headers: Iterable[tuple[bytes, bytes]], *, is_private: bool) -> Client:
    """Returns the client at an address; with `is_private`, the peer is our own router, which appends the address."""
    addresses = [peer[0] if peer else ""]
    if is_private:
        addresses += [value.decode("ascii", "ignore") for name, value in headers if name == b"x-forwarded-for"]
    return Client(addresses[-1][:MAX_NAME_BYTES])
