"""The keys with which a server's head and the joining engines authenticate each other (CURVE), and its addresses."""

import re
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from messages.errors import UsageError

ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:%.\w]+\]|[^:/\s]+):(?P<port>\d{1,5})")

K = TypeVar("K")


class JoinKeys(msgspec.Struct, frozen=True):
    """The keys of an engine on another machine: its own pair, and the head's public one (Z85)."""

    head_public: str
    public: str
    secret: str


class HeadKeys(msgspec.Struct, frozen=True):
    """The head's pair of keys, and the public key of those who may join (Z85)."""

    public: str
    secret: str
    join_public: str


def make_keys() -> tuple[HeadKeys, JoinKeys]:
    """Returns new keys for both ends."""
    (head, head_secret), (join, join_secret) = (
        (public.decode(), secret.decode()) for public, secret in (zmq.curve_keypair(), zmq.curve_keypair())
    )
    return HeadKeys(head, head_secret, join), JoinKeys(head, join, join_secret)


def read_keys(file: Path, kind: type[K]) -> K:
    """Reads a key file. Raises `UsageError` if no head has written it."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
    except msgspec.DecodeError:
        text = "holds no keys"
    raise UsageError(f"{file} {text}; copy join.key from the run directory of the head, which names it as it starts")


def check_address(flag: str, address: str) -> None:
    """Raises `UsageError` unless the address has the form `tcp://HOST:PORT`."""
    found = ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise UsageError(f"{flag}: {address!r} is no address: give it as tcp://HOST:PORT")
