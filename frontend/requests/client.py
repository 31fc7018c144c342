"""Who sends a request: what the scheduler shares between, and what restricts and counts it."""

from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

MAX_NAME_BYTES = 64


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a key with a name or, without such keys, an address."""

    name: str = ""
    key: str = ""
    """The name of its key; what it stores belongs to that."""
    share: int = 1
    """Its part of each step relative to other clients'."""
    priority: int | None = None
    """The smallest number of priority that its requests may have: the highest priority."""
    models: tuple[str, ...] = ()
    """The models and adapters that it may use, all if empty; `NAME*` stands for all that begin with NAME."""
    is_admin: bool = False
    sees_all: bool = True
    """It may see what others have stored, and their requests."""

    @property
    def only_of(self) -> str | None:
        """The key whose requests and stored objects it may see, "" for those of keys without names; `None`: all."""
        return None if self.sees_all else self.key

    def sees(self, key: str) -> bool:
        """True if it may see what belongs to `key`."""
        return self.only_of in (None, key)

    def may_use(self, names: Collection[str]) -> bool:
        """True for a model with these names if it may use it by one of them."""
        return not self.models or any(
            name.startswith(own[:-1]) if own.endswith("*") else name == own for own in self.models for name in names
        )

    def usable(self, names: Iterable[str]) -> list[str]:
        """Returns those of the models with different names that it may use."""
        return [name for name in names if self.may_use((name,))]

    def bounded(self, priority: int) -> int:
        """Returns the priority of a request that asks for `priority`."""
        return priority if self.priority is None else max(priority, self.priority)


class NamedKeys(Protocol):
    """The keys with names that there are now."""

    def find(self, key: bytes) -> Client | None:
        """Returns the holder of a key, `None` for one without a name."""
        ...

    def find_by_name(self, name: str) -> Client | None:
        """Returns the holder of the key with this name, `None` if there is none any more."""
        ...


INTERNAL = Client()
"""The server itself."""


def address_of(peer: tuple[str, int] | None, headers: Iterable[tuple[bytes, bytes]], *, is_private: bool) -> str:
    """Returns a client's address; with `is_private`, the peer is our own router, which appends the address."""
    addresses = [peer[0] if peer else ""]
    if is_private:
        addresses += [value.decode("ascii", "ignore") for name, value in headers if name == b"x-forwarded-for"]
    return addresses[-1][:MAX_NAME_BYTES]
