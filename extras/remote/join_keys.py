"""The keys by which the head of a server and the engines that join it know each other (CURVE), and its addresses."""

import re
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from messages.errors import UsageError

ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:%.\w]+\]|[^:/\s]+):(?P<port>\d{1,5})")

K = TypeVar("K")


class JoinKeys(msgspec.Struct, frozen=True):
    """What an engine on another machine needs to join: its own pair of keys, and the head's public one (Z85)."""

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
    """Raises `UsageError` if the file is not one that a head has written."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
    except msgspec.DecodeError:
        text = "holds no keys"
    raise UsageError(f"{file} {text}; copy join.key from the run directory of the head, which names it as it starts")


def check_address(flag: str, address: str) -> None:
    """Raises `UsageError` for what is no `tcp://HOST:PORT`."""
    found = ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise UsageError(f"{flag}: {address!r} is no address: give it as tcp://HOST:PORT")
