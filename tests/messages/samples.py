"""A message of each kind that the ring's processes exchange, with something in every field."""

import types
import typing
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from messages.frame_files import UNIONS
from messages.ring.plain import fields_of, typecode_of

SECRET = "sesame"
"""The value of every text except those in `WORDS`."""

WORDS = ("receiver", "param", "code", "type")
"""Fields with texts of ours, not of clients."""

TOKEN_ID = 2_718_281
"""The value in every int32 column and every number."""

FEW = 3


def samples() -> Iterator[tuple[str, Any]]:
    """Yields (kind of the receiver, message)."""
    for kind, union in UNIONS.items():
        for struct in typing.get_args(union):
            yield kind, make_sample(struct)


def make_sample(hint: Any, name: str = "") -> Any:
    """Returns a value of the type `hint`, different from defaults."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = fields_of(hint).items()
        return hint(
            **{field: False if default is True else make_sample(own, field) for field, (default, own) in fields}
        )
    typecode = typecode_of(hint)
    if typecode is not None:
        return array(typecode, [TOKEN_ID] * FEW).tobytes()
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return parts[-1]
    if origin in (typing.Union, types.UnionType):
        return make_sample(next(part for part in parts if part is not type(None)), name)
    if origin is tuple:
        return tuple(make_sample(part, name) for part in ([parts[0]] * FEW if parts[-1] is ... else parts))
    if origin is dict:
        return {"ours": make_sample(parts[1])}
    plain = {int: TOKEN_ID, float: 0.5, str: "ours" if name in WORDS else SECRET, bool: True}
    return plain[hint] if hint in plain else sample_bytes(name)


def sample_bytes(name: str) -> bytes:
    as_json = {"messages": [{"role": "user", "content": SECRET}], "template_kwargs": {"style": SECRET}}
    return msgspec.json.encode(as_json[name]) if name in as_json else SECRET.encode()
