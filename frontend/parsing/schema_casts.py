"""Casts arguments that a model wrote as plain text to the types in the tool's schema.

The rules are those of `transformers.utils.chat_parsing` (5.23): the first type that fits the text. Objects and lists
may also be Python literals, and types may be references to definitions.
"""

# pyright: basic
# (values here are whatever JSON holds)

import ast
import json
import math
from typing import Any

NOT_READ = object()
MAX_REFERENCES = 8
"""More in a row are a cycle."""


def cast_arguments(arguments: dict[str, Any], parameters: Any) -> dict[str, Any]:
    """Returns the arguments with texts cast to the types of their properties in the schema `parameters`."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return arguments
    return {
        name: _cast(value, _types_of(properties[name], parameters)) if name in properties else value
        for name, value in arguments.items()
    }


def write_begun(name: str, value: str, parameters: Any) -> str:
    """Returns the beginning of a value as JSON: the text itself, unless its schema allows a string."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    types = _types_of(properties.get(name), parameters) if isinstance(properties, dict) else []
    return value if types and "string" not in types else json.dumps(value, ensure_ascii=False)[:-1]


def _types_of(schema: Any, whole: dict[str, Any], num_references: int = 0) -> list[str]:
    """Returns the types in a schema, in order; references are to the definitions in `whole`."""
    if not isinstance(schema, dict) or num_references > MAX_REFERENCES:
        return []
    where, _, key = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
    if key:
        return _types_of((whole.get(where) or {}).get(key), whole, num_references + 1)
    declared = schema.get("type")
    types = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    types = [name for name in types if isinstance(name, str)]
    for choice in [*(schema.get("anyOf") or []), *(schema.get("oneOf") or [])]:
        types += _types_of(choice, whole, num_references)
    return [*types, "null"] if schema.get("nullable") and "null" not in types else types


def _cast(value: Any, types: list[str]) -> Any:
    if isinstance(value, list) and "array" not in types:
        return [_cast(item, types) for item in value]
    if not isinstance(value, str):
        return value
    for name in types:
        try:
            read = _read(value, name)
        except (ValueError, OverflowError, RecursionError):
            continue
        if read is not NOT_READ:
            return read
    return value


def _read(text: str, name: str) -> Any:
    """Returns `text` as a value of the JSON type `name`. `NOT_READ` or a `ValueError` means that it does not fit."""
    match name:
        case "integer":
            try:
                return int(text)
            except ValueError:
                number = float(text)
                return int(number) if number.is_integer() else NOT_READ
        case "number":
            number = float(text)
            if not math.isfinite(number):
                return NOT_READ
            return int(number) if number.is_integer() and "." not in text else number
        case "boolean":
            word = text.strip().lower()
            return word in ("true", "1") if word in ("true", "1", "false", "0") else NOT_READ
        case "null":
            return None if text.strip() in ("null", "None") else NOT_READ
        case "object" | "array":
            value = _read_container(text)
            return value if isinstance(value, dict if name == "object" else list) else NOT_READ
        case _:
            return NOT_READ


def _read_container(text: str) -> Any:
    """Returns the value of JSON or of a Python literal, which some chat templates show. Raises `ValueError`."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text.strip())
        except (SyntaxError, TypeError, MemoryError):
            raise ValueError(text) from None
