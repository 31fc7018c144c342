"""What is wrong inside of a list of messages, items or blocks: the place, what belongs there, and in which type."""

import re
from typing import Any, cast

import msgspec
from msgspec import Raw

from frontend.http.field_names import MAX_SHOWN_CHARS, shown

KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
"""By their names in msgspec's messages."""

MAX_READ_BYTES = 2**20
"""Of a field in which the value at a place is shown: all of the field is read for it, however little is wrong."""

MISTAKE = re.compile(r"Expected `([a-z]+(?: \| [a-z]+)*)`, got `[a-z]+`\Z")
STEP = re.compile(r"\[(\d+)\]|\.(\w+)")


def explain_inside(name: str, place: str, words: str, raw: Raw) -> str:
    """Returns what is wrong at `place` (as `[1].content`) of a list, "" where no object around it has a type or role.

    `name` is the place as clients know it; `words` are msgspec's.
    """
    if not place.startswith("[") or memoryview(raw).nbytes > MAX_READ_BYTES:
        return ""
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):  # in what nobody reads
        return ""
    owner = ""
    for step in STEP.finditer(place):
        owner = _owner(value) or owner
        value = value[int(step[1])] if step[1] else value[step[2]]
    mistake = MISTAKE.match(words)
    if mistake is None:
        owner = _owner(value) or owner
        return owner and f"{name}: {words}{owner}"
    if not owner:
        return ""
    kinds = [KINDS.get(kind, kind) for kind in mistake[1].split(" | ") if kind != "null"]
    return f"{name} must be {' or '.join(kinds)}, got {shown(Raw(msgspec.json.encode(value)))}{owner}"


def _owner(value: Any) -> str:
    """Returns what kind of object a value is, if it says so: by its type, or as a message by its role."""
    if not isinstance(value, dict):
        return ""
    fields = cast("dict[str, Any]", value)
    if isinstance(kind := fields.get("type"), str) and kind:
        return f" (in an object of type {kind[:MAX_SHOWN_CHARS]!r})"
    if isinstance(role := fields.get("role"), str) and role:
        return f" (in a message of the role {role[:MAX_SHOWN_CHARS]!r})"
    return ""
