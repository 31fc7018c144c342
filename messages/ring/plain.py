"""Messages as plain values: structs become dicts by field name, columns become lists of numbers."""

import functools
import typing
from array import array
from collections.abc import Callable
from typing import Any, cast

import msgspec

from messages.ring.axes import Column


def to_plain(value: Any, hint: Any = None) -> Any:
    """Returns a value that JSON can represent. Fields with their default are left out; binary bytes become hex digits.

    `hint` is the type of the field that holds `value`; for a column it gives the number format.
    """
    if isinstance(value, msgspec.Struct):
        fields = {
            name: to_plain(getattr(value, name), field_hint)
            for name, (default, field_hint) in fields_of(type(value)).items()
            if getattr(value, name) != default
        }
        return {"type": type(value).__name__, **fields}
    if isinstance(value, bytes):
        return _plain_bytes(value, typecode_of(hint))
    if isinstance(value, tuple | list):
        items = cast("tuple[Any, ...]", value)
        (item_hint, *_) = typing.get_args(hint) or (None,)
        return [to_plain(item, item_hint) for item in items]
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def typecode_of(hint: Any) -> str | None:
    """Returns the number format of a column from its field's annotation, `None` for bytes that are not a column."""
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, str | Column):
            return mark if isinstance(mark, str) else mark.typecode
    return None


def _plain_bytes(value: bytes, typecode: str | None) -> Any:
    if typecode is not None:
        numbers: array[float] = array(typecode)
        if len(value) % numbers.itemsize == 0:
            numbers.frombytes(value)
            return numbers.tolist()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, Any]]:
    """Returns (default, type) of each field; `msgspec.NODEFAULT` if there is no default."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return {field.name: (_default_of(field), hints[field.name]) for field in msgspec.structs.fields(struct)}


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else cast("Callable[[], Any]", factory)()
