"""Explains errors inside a list of messages, items or blocks: the place, the expected value, the object around it."""

import re
from typing import Any, cast

import msgspec
from msgspec import Raw

from frontend.http.field_names import shown
from messages.errors import quoted

KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
"""The kinds of values, by their names in msgspec's messages."""

MAX_READ_BYTES = 2**20
"""The largest field in which the value at a place is shown: finding it decodes the whole field."""

MISTAKE = re.compile(r"Expected `([a-z]+(?: \| [a-z]+)*)`, got `[a-z]+`\Z")

STEP = re.compile(r"\[(\d+)\]|\.(\w+)")


def explain_inside(name: str, place: str, words: str, raw: Raw) -> str:
    """Returns the error at `place` in a list (such as `[1].content`), "" if no object around it has a type or role.

    `name`: the place as clients know it. `words`: msgspec's message.
    """
    if not place.startswith("[") or memoryview(raw).nbytes > MAX_READ_BYTES:
        return ""
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):  # in a part that is never decoded
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
    """Returns the kind of an object, given by its type or, for a message, by its role; "" if it has neither."""
    if not isinstance(value, dict):
        return ""
    fields = cast("dict[str, Any]", value)
    if isinstance(kind := fields.get("type"), str) and kind:
        return f" (in an object of type {quoted(kind)})"
    if isinstance(role := fields.get("role"), str) and role:
        return f" (in a message of the role {quoted(role)})"
    return ""
