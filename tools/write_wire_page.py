"""Writes docs/WIRE.md: the messages between processes, generated from the structs themselves.

python -m tools.write_wire_page
"""

import inspect
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from extras.faults.messages import Fault
from extras.remote.messages import ToJoiner, ToProxy
from messages import frame_files
from messages.columns import FLOAT32, INT32, INT64
from messages.control.processes import ToLauncher, ToProcess
from messages.ring.plain import fields_of, typecode_of
from messages.schema import SCHEMA_VERSION

PAGE = Path(__file__).resolve().parents[1] / "docs" / "WIRE.md"
CONTROL = {
    "launcher": ToLauncher,
    "processes": ToProcess,
    "processes, in an `ExtraInstruction` of fault injection": Fault,
    "proxy": ToProxy,
    "joiner": ToJoiner,
}
FORMATS = {INT32: "int32 column", INT64: "int64 column", FLOAT32: "float32 column"}

HEAD = """# Messages between processes

Written by `python -m tools.write_wire_page` from the structs in `messages/`; a test compares them. The version of the
schema is `{version:x}`, a digest of all names, types and orders of fields. A process with another version is rejected.

A **frame** is a header of 16 bytes (sender id and number, two little-endian uint64) followed by one message in
MessagePack. A message is an array: the name of the struct, then its fields in the order below. Nested structs are
arrays without the name, unless a field allows several structs. Fields are only ever added at the end, with a default,
so frames recorded by an older version still decode. A column is bytes: consecutive numbers in native byte order.

A **file of frames** (`{suffix}`: the black box, `--record`) begins with {data} bytes: `{header}` for magic `{magic}`,
format {format}, pid, schema version, wall-clock and monotonic time of the beginning (ns), capacity in bytes and process
name. Offsets {tail} and {head} hold the positions (uint64) of the first record and of the end of the last one. A record
is `{record}` for the size of the frame, flags (1: sent, otherwise received; 2: cut), the size of the receiver's name, 0
and monotonic time (ns), followed by name and frame, padded to a multiple of {alignment}. A record at position p begins
at offset {data} + p modulo capacity. A size of 2^32 - 1 means that the next record is at the beginning of the ring.
"""


def make_page() -> str:
    """Returns the page."""
    head = HEAD.format(
        version=SCHEMA_VERSION,
        suffix=frame_files.SUFFIX,
        data=frame_files.DATA,
        header=frame_files.FILE_HEADER.format,
        magic=frame_files.MAGIC.decode(),
        format=frame_files.FORMAT,
        tail=frame_files.TAIL,
        head=frame_files.HEAD,
        record=frame_files.RECORD.format,
        alignment=frame_files.ALIGNMENT,
    )
    parts = [head]
    inner: dict[str, type[msgspec.Struct]] = {}
    for receiver, union in {**frame_files.UNIONS, **CONTROL}.items():
        structs = list(structs_in(union))
        parts.append(f"## To the {receiver}\n\n" + ", ".join(f"`{struct.__name__}`" for struct in structs) + "\n")
        for struct in structs:
            collect(struct, inner)
    parts.append("## Structs\n")
    parts += [describe(inner[name]) for name in sorted(inner)]
    return "\n".join(parts)


def collect(struct: type[msgspec.Struct], found: dict[str, type[msgspec.Struct]]) -> None:
    """Adds a struct and those in its fields."""
    if struct.__name__ in found:
        return
    found[struct.__name__] = struct
    for _, hint in fields_of(struct).values():
        for part in structs_in(hint):
            collect(part, found)


def structs_in(hint: Any) -> typing.Iterator[type[msgspec.Struct]]:
    """Yields the structs that a type names."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in typing.get_args(hint):
        yield from structs_in(part)


def describe(struct: type[msgspec.Struct]) -> str:
    text = inspect.cleandoc(struct.__doc__ or "")
    rows = [
        f"| `{name}` | {show(hint)} | {'' if default is msgspec.NODEFAULT else f'`{default!r}`'} |"
        for name, (default, hint) in fields_of(struct).items()
    ]
    table = ["| field | type | default |", "|---|---|---|", *rows] if rows else ["No fields."]
    return "\n".join([f"### {struct.__name__}\n", *([text, ""] if has_own_docstring(struct) else []), *table, ""])


def has_own_docstring(struct: type[msgspec.Struct]) -> bool:
    return bool(struct.__doc__) and not str(struct.__doc__).startswith(f"{struct.__name__}(")


def show(hint: Any) -> str:
    """Returns a type as the page shows it."""
    typecode = typecode_of(hint)
    if typecode is not None:
        return FORMATS[typecode]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return show(parts[0])
    if origin is typing.Literal:
        return ", ".join(f'"{part}"' for part in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("nothing" if part is type(None) else show(part) for part in parts)
    if origin is tuple:
        return f"list of ({show(parts[0])})" if parts[-1] is ... else f"({', '.join(map(show, parts))})"
    if origin is dict:
        return f"map of {show(parts[0])} to {show(parts[1])}"
    name = getattr(hint, "__name__", str(hint))
    return f"[{name}](#{name.lower()})" if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else name


def main() -> int:
    PAGE.write_text(make_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
