"""The version of the messages between processes, derived from the structs themselves."""

import hashlib
import typing
from typing import Any

import msgspec

from messages.control.processes import ToLauncher, ToProcess
from messages.ring.peers import ToFrontend
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import ToEncoder, ToScheduler, ToTokenizer
from messages.ring.steps import ToRank


def make_version(*types: Any) -> int:
    """Returns a digest of the structs in `types`: it changes with a name, a type or the order of fields."""
    found: dict[str, str] = {}
    _describe(types, found)
    text = msgspec.json.encode(sorted(found.items()))
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest())


def _describe(types: typing.Iterable[Any], found: dict[str, str]) -> None:
    """Adds the fields of each struct in `types`, and of nested structs, by name (the tag on the wire)."""
    for part in types:
        if not (isinstance(part, type) and issubclass(part, msgspec.Struct)):
            _describe(typing.get_args(part), found)
        elif part.__name__ not in found:
            hints = typing.get_type_hints(part)
            found[part.__name__] = ", ".join(f"{name}: {hints[name]}" for name in part.__struct_fields__)
            _describe(hints.values(), found)


SCHEMA_VERSION = make_version(
    ToTokenizer, ToEncoder, ToScheduler, ToDetokenizer, ToFrontend, ToLauncher, ToProcess, ToRank
)
"""The launcher and its processes must have the same version."""
