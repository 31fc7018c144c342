"""Simplifies JSON schemas for llguidance: removes keywords without effect and rejects numbers that would be inexact.

llguidance rejects unknown keywords, whatever their value, and silently rounds or saturates large integers.
"""

# pyright: basic
# (values here are any JSON)

import contextlib
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from runtime.grammars import GrammarError
from tokenizer_proc.closed_objects import close_objects
from tokenizer_proc.schema_faults import DEFINITIONS, OF_NAMED_SCHEMAS, OF_SCHEMA_LISTS, OF_SCHEMAS, resolve

BOUNDED_WHITESPACE = r" |\n[ \t]{0,20}"
"""Whitespace between JSON tokens: a space, or a line break with indentation. Without this bound, small models may write
whitespace until `max_tokens`."""

MAX_EXACT = 1 << 53
"""The largest integer up to which all are exact as float64, llguidance's type for numbers."""

MAX_INT64 = (1 << 63) - 1

EMBEDDED = re.compile(r"%json\s*(?=\{)")

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
ANNOTATIONS = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$anchor"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
}
STANDARD_FORMATS = {
    *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri"),
    *("uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer"),
    "regex",
}
"""The formats of JSON Schema. By the standard, all others are annotations."""

URI_SAFE = "#/?:@!$&'()*+,;=~%"
STRAY_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


def simplify(schema: Any, *, is_closed: bool = True) -> Any:
    """Returns an equivalent schema without keywords that every value satisfies, or with `is_closed` a stricter one.

    Its objects are then closed (`close_objects`). Raises `GrammarError` for a number that llguidance would change.
    """
    schema = close_objects(schema) if is_closed else schema
    return _simplify(schema, schema)


def _simplify(schema: Any, whole: Any) -> Any:
    """Returns an equivalent of a part of the schema `whole`."""
    if not isinstance(schema, dict):
        return schema
    _check_numbers(schema)
    simple = {key: _simplify_part(key, value, whole) for key, value in schema.items()}
    _enforce_names(simple, whole)
    for key in [key for key in simple if _forbids_nothing(key, simple)]:
        del simple[key]
    return simple


def simplify_within(lark: str, *, is_closed: bool = True) -> str:
    """Simplifies the schemas (`%json {…}`) in a grammar in Lark's form. Raises `GrammarError`."""
    parts: list[str] = []
    start = 0
    for mark in EMBEDDED.finditer(lark):
        if mark.end() < start:
            continue
        with contextlib.suppress(ValueError, RecursionError):  # llguidance reports the error
            schema, end = DECODER.raw_decode(lark, mark.end())
            schema = simplify(schema, is_closed=is_closed)
            if isinstance(schema, dict) and "x-guidance" not in schema:
                schema["x-guidance"] = {"whitespace_pattern": BOUNDED_WHITESPACE}
            parts += [lark[start : mark.end()], json.dumps(schema)]
            start = end
    return "".join([*parts, lark[start:]])


def _simplify_part(key: str, value: Any, whole: Any) -> Any:
    if key in OF_SCHEMA_LISTS and isinstance(value, list):
        return [_simplify(each, whole) for each in value]
    if key in OF_SCHEMAS:
        return _simplify(value, whole)
    if (key in OF_NAMED_SCHEMAS or key in DEFINITIONS or key == "dependencies") and isinstance(value, dict):
        return {name: _simplify(each, whole) for name, each in value.items()}
    return _encoded(value, whole) if key in ("$ref", "$id") and isinstance(value, str) else value


def _encoded(reference: str, whole: Any) -> str:
    """Returns a URI with the characters percent-encoded that may not stand in one; many libraries leave them."""
    pointers = [pointer for pointer, _ in resolve(reference, whole)]
    if pointers:
        return "#" + "".join("/" + quote(part.replace("~", "~0").replace("/", "~1"), safe="~") for part in pointers[0])
    return STRAY_PERCENT.sub("%25", quote(reference, safe=URI_SAFE))


def _forbids_nothing(key: str, schema: dict[str, Any]) -> bool:
    value = schema[key]
    match key:
        case "propertyNames":
            return _allows_all(value, "string")
        case "unevaluatedProperties" | "unevaluatedItems":
            return _allows_all(value)
        case "uniqueItems":
            return value is False or schema.get("maxItems") in (0, 1)
        case "not":
            return value is False
        case "if" | "then" | "else":
            parts = [schema[part] for part in ("then", "else") if part in schema]
            return "if" not in schema or all(map(_allows_all, parts))
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return isinstance(value, dict) and all(each == [] or _allows_all(each) for each in value.values())
        case "contains" | "minContains" | "maxContains":
            return "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema)
        case "format":
            return isinstance(value, str) and value not in STANDARD_FORMATS
        case "$schema":
            return isinstance(value, str)
        case _:
            return False


def _allows_all(schema: Any, value_type: str = "") -> bool:
    """True if every value of the type is valid; without a type, if every value is."""
    if not isinstance(schema, dict):
        return schema is True
    types = schema.get("type", value_type)
    is_of_type = value_type == types or (isinstance(types, list) and value_type in types)
    return is_of_type and schema.keys() <= ANNOTATIONS | {"type"}


def _enforce_names(schema: dict[str, Any], whole: Any) -> None:
    """Replaces `propertyNames` by equivalent properties, if the schema has none."""
    names = schema.get("propertyNames")
    if isinstance(names, dict) and names.keys() - ANNOTATIONS == {"$ref"}:
        names = next((found for _, found in resolve(names["$ref"], whole)), names)
    if not isinstance(names, dict) or "properties" in schema or "patternProperties" in schema:
        return
    restricting = names.keys() - ANNOTATIONS - {"type"}
    values = schema.get("additionalProperties", True)
    if names.get("type", "string") != "string":
        return
    if restricting == {"enum"} and isinstance(names["enum"], list):
        schema["properties"] = {name: values for name in names["enum"] if isinstance(name, str)}
    elif restricting == {"const"} and isinstance(names["const"], str):
        schema["properties"] = {names["const"]: values}
    elif restricting == {"pattern"} and isinstance(names["pattern"], str):
        schema["patternProperties"] = {names["pattern"]: values}
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _check_numbers(schema: dict[str, Any]) -> None:
    is_integer = schema.get("type") == "integer"
    for key in BOUNDS:
        value = schema.get(key, 0)
        if _is_number(value) and not _is_exact_bound(value, key, is_integer=is_integer):
            raise _inexact(value)
    for value in _numbers_in([schema.get("const"), schema.get("enum"), schema.get("multipleOf")]):
        if abs(value) > MAX_EXACT and not _is_exact(value):
            raise _inexact(value)


def _is_exact_bound(value: float, key: str, *, is_integer: bool) -> bool:
    if key.startswith("exclusive"):
        return abs(value) < MAX_EXACT
    is_largest = key == "maximum" and value == MAX_INT64
    return abs(value) <= MAX_EXACT or (is_integer and (_is_exact(value) or is_largest))


def _is_exact(value: float) -> bool:
    return abs(value) < MAX_INT64 and float(value) == value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers_in(value: Any) -> Iterator[float]:
    if _is_number(value):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(each)


def _inexact(value: object) -> GrammarError:
    shown = str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}…"
    return GrammarError(f"{shown} cannot be kept to exactly: numbers are exact up to {MAX_EXACT}, use a string")


def _read_float(text: str) -> float:
    value = float(text)
    if MAX_EXACT <= abs(value) < float("inf") and Decimal(text) != Decimal(value):
        raise _inexact(text)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_float=_read_float, parse_constant=_refuse_constant)
