"""The text of a forced tool call in the model's format: marks around JSON that follows a schema."""

# pyright: basic
# (values here are whatever JSON holds)

from collections.abc import Mapping
from typing import Any, NamedTuple

from frontend.parsing.marked_format import CallSyntax

DEFINITIONS = ("$defs", "definitions")
NAME = "{name}"


class ForcedCalls(NamedTuple):
    """`begin`, then JSON that `schema` accepts (any text if it is `None`), then `end`."""

    begin: str
    schema: dict[str, Any] | None
    end: str


def find_without_object(tools: Mapping[str, Any]) -> str | None:
    """Returns the name of a tool whose arguments could not be an object, as a call needs; `None` if there is none."""
    for name, schema in tools.items():
        types = (schema or {}).get("type", "object")
        if types != "object" and not (isinstance(types, list) and "object" in types):
            return name
    return None


def _of_object(schema: Any) -> dict[str, Any]:
    """Returns the schema restricted to objects; any object if there is no schema."""
    return schema if schema and "$ref" in schema else {**(schema or {}), "type": "object"}


def force_calls(forced: CallSyntax, tools: Mapping[str, Any], *, allows_several: bool) -> tuple[ForcedCalls, ...]:
    """Returns the ways to call one of `tools`, whose values are the schemas of their parameters, `None` for any.

    The answer must be one of them. If the mark contains the name, each tool has its own. If calls are a list, the
    answer may have several with `allows_several`.
    """
    parameters = {name: _of_object(schema) for name, schema in tools.items()}
    if NAME in forced.begin:
        follows_schema = forced.is_json or (forced.tag is not None and None not in tools.values())
        return tuple(
            ForcedCalls(forced.begin.replace(NAME, name), schema if follows_schema else None, forced.end)
            for name, schema in parameters.items()
        )
    definitions: dict[str, Any] = {}
    calls = [
        _call(forced, name, _hoist(schema, f"{number}.", definitions))
        for number, (name, schema) in enumerate(parameters.items())
    ]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if forced.is_list:
        schema = {"type": "array", "items": schema, "minItems": 1, **({} if allows_several else {"maxItems": 1})}
    return (ForcedCalls(forced.begin, {**schema, **({"$defs": definitions} if definitions else {})}, forced.end),)


def _call(forced: CallSyntax, name: str, arguments: Any) -> dict[str, Any]:
    """Returns the schema of a call of the tool `name`."""
    if forced.name_key is None:
        properties = {name: arguments}
    else:
        properties = {forced.name_key: {"const": name}, forced.arguments_key: arguments}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _hoist(schema: Any, prefix: str, definitions: dict[str, Any]) -> Any:
    """Returns a schema for use within another one: its definitions, and references to them, move to the top."""
    if not isinstance(schema, dict):
        return schema
    rest = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    for key in DEFINITIONS:
        for name, value in (schema.get(key) or {}).items():
            definitions[prefix + name] = _refer(value, prefix)
    return _refer(rest, prefix)


def _refer(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_refer(item, prefix) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _moved(item, prefix) if key == "$ref" and isinstance(item, str) else _refer(item, prefix)
        for key, item in value.items()
    }


def _moved(reference: str, prefix: str) -> str:
    for key in DEFINITIONS:
        start = f"#/{key}/"
        if reference.startswith(start):
            return f"#/$defs/{prefix}{reference.removeprefix(start)}"
    return reference
