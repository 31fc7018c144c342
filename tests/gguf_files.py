"""GGUF files for tests, written byte by byte, so that each part of them can be damaged."""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from runtime.gguf.block_types import BLOCK_TYPES

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NUMBERS = {block_type.name: number for number, block_type in BLOCK_TYPES.items()}


class Typed(NamedTuple):
    """A metadata value of a type other than that of its Python type; `kind` is the number in the format."""

    kind: int
    value: Any


class Stored(NamedTuple):
    """A tensor: its type's name or number, its shape with rows first, its bytes (default: zeros), and its offset."""

    type: str | int
    shape: Sequence[int]
    data: bytes | None = None
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Any) -> bytes:
    """Returns type and value: a list is an array, an int is of 32 bits without a sign, a float of 32 bits."""
    match value:
        case Typed(kind, list(values)):
            return struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(_item(kind, each) for each in values)
        case Typed(kind, each):
            return struct.pack("<I", kind) + _item(kind, each)
        case list():
            return value_bytes(Typed(_kind_of(value[0]) if value else STRING, value))
        case _:
            return value_bytes(Typed(_kind_of(value), value))


def _kind_of(value: Any) -> int:
    return {bool: 7, int: 4, float: 6, str: STRING, bytes: STRING}[type(value)]


def _item(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack(f"<{CODES[kind]}", value)


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, Stored] = {}, alignment: int = 32, version: int = 3
) -> bytes:
    """Returns the content of a file. With another alignment than 32, metadata must have `general.alignment`."""
    header = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    header += [text(key) + value_bytes(value) for key, value in metadata.items()]
    data = b""
    for name, (kind, shape, content, offset) in tensors.items():
        number = NUMBERS[kind] if isinstance(kind, str) else kind
        place = len(data) if offset is None else offset
        header.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, place))
        if content is None and number in BLOCK_TYPES and prod(shape) < 1 << 24:
            content = bytes(prod(shape) // BLOCK_TYPES[number].block_values * BLOCK_TYPES[number].block_bytes)
        data += content or b""
        data += bytes(-len(data) % alignment)
    joined = b"".join(header)
    return joined + bytes(-len(joined) % alignment) + data if tensors else joined


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored] = {}) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path
