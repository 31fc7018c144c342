"""Locates the error in a JSON schema that llguidance reports without a place."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from messages.errors import quoted
from messages.ring.requests import CallGrammar

MAX_SEARCH_S = 1.0
MAX_POINTER_CHARS = 80

OF_SCHEMAS = {
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
OF_NAMED_SCHEMAS = {"dependentSchemas", "patternProperties", "properties"}
OF_SCHEMA_LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
DEFINITIONS = ("$defs", "definitions")

Pointer = tuple[str, ...]
Schema = dict[str, Any]


def find_fault(schema_text: str, explain: Callable[[str], str]) -> str:
    """Returns the JSON pointer of the deepest subschema with the same error as the whole, empty if unknown.

    `explain` returns the error of a schema, empty if it is valid. The search takes at most a second.
    """
    try:
        whole: Any = json.loads(schema_text)
        return _find_fault(whole, explain, time.monotonic() + MAX_SEARCH_S) if isinstance(whole, dict) else ""  # pyright: ignore[reportUnknownArgumentType]
    except (ValueError, RecursionError):
        return ""


def explain_calls(asked: CallGrammar, explain: Callable[[str], str]) -> str:
    """Returns the first tool with an invalid parameter schema and its error, empty if none is found."""
    deadline_s = time.monotonic() + MAX_SEARCH_S
    for name, schema in zip(asked.names, _parameters(asked), strict=False):
        text = json.dumps(schema)
        words = explain(text) if time.monotonic() < deadline_s else ""
        if words:
            return f"the parameters of {quoted(name)}: {words} (at {find_fault(text, explain) or '#'})"
    return ""


def _parameters(asked: CallGrammar) -> Iterator[Schema]:
    """Yields the schema of each tool's parameters, which may include the definitions of others.

    A tool that accepts any text has a schema that allows everything.
    """
    schemas: list[Schema] = [schema or {} for _, schema, _ in asked.decoded()]
    begins = zip(asked.names, asked.calls, strict=False)
    if len(asked.names) == len(schemas) and all(name in begin for name, (begin, _, _) in begins):
        yield from schemas
        return
    schema = schemas[0]
    definitions: Schema = {name: schema[name] for name in DEFINITIONS if name in schema}
    calls = schema.get("items", schema)
    for call in calls.get("anyOf", [calls]):
        *_, parameters = call["properties"].values()
        yield definitions | parameters


def _find_fault(whole: Schema, explain: Callable[[str], str], deadline_s: float) -> str:
    words = explain(json.dumps(whole))
    if not words:
        return ""
    definitions = {name: whole[name] for name in DEFINITIONS if name in whole}
    pointer: Pointer = ()
    seen: set[Pointer] = set()
    children = list(_children(pointer, whole, whole))
    while children and time.monotonic() < deadline_s:
        child_pointer, child = children.pop(0)
        if child_pointer not in seen and explain(json.dumps(definitions | child)) == words:
            seen.add(child_pointer)
            pointer, children = child_pointer, list(_children(child_pointer, child, whole))
    text = "#" + "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in pointer)
    return text if len(text) <= MAX_POINTER_CHARS else f"{text[:MAX_POINTER_CHARS]}…"


def _children(pointer: Pointer, schema: Schema, whole: Schema) -> Iterator[tuple[Pointer, Schema]]:
    """Yields the subschemas of a schema, and the one that it references."""
    for key, value in schema.items():
        if key == "$ref":
            yield from resolve(value, whole)
        elif key in OF_SCHEMAS and isinstance(value, dict):
            yield (*pointer, key), value
        elif key in OF_NAMED_SCHEMAS and isinstance(value, dict):
            named: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            yield from (((*pointer, key, name), each) for name, each in named.items() if isinstance(each, dict))
        elif key in OF_SCHEMA_LISTS and isinstance(value, list):
            listed: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            yield from (((*pointer, key, str(i)), each) for i, each in enumerate(listed) if isinstance(each, dict))


def resolve(reference: Any, whole: Schema) -> Iterator[tuple[Pointer, Schema]]:
    """Yields the subschema of `whole` that a reference names, percent-encoded or not, with its pointer.

    Yields nothing if there is none.
    """
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return
    for text in dict.fromkeys((reference, unquote(reference))):
        pointer = tuple(part.replace("~1", "/").replace("~0", "~") for part in text[2:].split("/"))
        found: Any = whole
        for part in pointer:
            found = found.get(part) if isinstance(found, dict) else None  # pyright: ignore
        if isinstance(found, dict):
            yield pointer, found  # pyright: ignore[reportUnknownVariableType]
            return
