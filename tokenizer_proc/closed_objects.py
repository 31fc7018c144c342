"""Closes the objects of a JSON schema: those with `properties` that do not mention others may have no others.

Libraries such as pydantic leave `additionalProperties` out, and small models then write properties until `max_tokens`.
"""

# pyright: basic
# (values here are any JSON)

from collections.abc import Iterator
from typing import Any

from tokenizer_proc.schema_faults import DEFINITIONS, OF_NAMED_SCHEMAS, OF_SCHEMA_LISTS, OF_SCHEMAS, resolve

Schema = dict[str, Any]

OPENERS = {
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "const", "enum"),
    *("dependentSchemas", "dependencies", "if", "not"),
}
"""Keywords of an object that decide about other properties themselves."""
IN_PLACE = ("allOf", "anyOf", "oneOf", "$ref")
"""Keywords whose schemas describe the same value as the schema around them."""
UNCHANGED = {"not", "if", "then", "else", "propertyNames", "dependentSchemas"}
"""Keywords whose schemas are conditions: closing them would change what they accept."""
CLOSED = {"additionalProperties": False}
MAX_STEPS = 100_000
"""The most names and parts that are looked at for combined objects; any further ones stay open."""


def close_objects(whole: Any) -> Any:
    """Returns the schema with closed objects.

    The parts of an object that several schemas describe (an `allOf`, a `$ref` next to `properties`) stay open, and the
    schema around them names the properties of all. An object stays open if its `minProperties` needs more.
    """
    return _Closing(whole).close(whole) if isinstance(whole, dict) else whole


class _Closing:
    def __init__(self, whole: Schema):
        self._whole = whole
        self._parts: set[int] = set()
        """Ids of the schemas that describe an object together with others."""
        self._num_steps = 0
        for schema in _walk(whole):
            if _is_combined(schema):
                for part in self._in_place(schema):
                    self._mark(part)

    def close(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        closed = {key: self._close_within(key, value) for key, value in schema.items()}
        if id(schema) in self._parts:
            return closed
        is_combined = _is_combined(schema) or any(id(part) in self._parts for part in self._referenced(schema))
        if not is_combined and not isinstance(schema.get("properties"), dict):
            return closed
        is_property: dict[str, bool] = {}
        if not self._collect(schema, is_property, set()) or (is_combined and not any(is_property.values())):
            return closed
        minimum, own = schema.get("minProperties", 0), closed.get("properties", {})
        if isinstance(minimum, int) and minimum > len(is_property):
            return closed
        return {**closed, "properties": {**own, **{name: own.get(name, {}) for name in is_property}}, **CLOSED}

    def _close_within(self, key: str, value: Any) -> Any:
        if key in UNCHANGED:
            return value
        if key in OF_SCHEMA_LISTS and isinstance(value, list):
            return [self.close(each) for each in value]
        if (key in OF_NAMED_SCHEMAS or key in DEFINITIONS) and isinstance(value, dict):
            return {name: self.close(each) for name, each in value.items()}
        return self.close(value) if key in OF_SCHEMAS else value

    def _collect(self, schema: Schema, is_property: dict[str, bool], seen: set[int]) -> bool:
        """Adds the names that the object and its parts mention, each with whether it is one of `properties`.

        Returns False if one of them decides about other properties, or after too much work.
        """
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if OPENERS & schema.keys() or not isinstance(properties, dict) or not isinstance(required, list):
            return False
        seen.add(id(schema))
        is_property |= dict.fromkeys(properties, True)
        for name in required:
            if isinstance(name, str):
                is_property.setdefault(name, False)
        parts = [part for part in self._in_place(schema) if id(part) not in seen]
        self._num_steps += len(properties) + len(required) + len(parts)
        return (not parts or self._num_steps <= MAX_STEPS) and all(
            id(part) in seen or self._collect(part, is_property, seen) for part in parts
        )

    def _mark(self, schema: Schema) -> None:
        if id(schema) not in self._parts:
            self._parts.add(id(schema))
            for part in self._in_place(schema):
                self._mark(part)

    def _in_place(self, schema: Schema) -> Iterator[Schema]:
        for key in ("allOf", "anyOf", "oneOf"):
            entries = schema.get(key)
            yield from (each for each in (entries if isinstance(entries, list) else ()) if isinstance(each, dict))
        yield from self._referenced(schema)

    def _referenced(self, schema: Schema) -> Iterator[Schema]:
        for _, found in resolve(schema.get("$ref"), self._whole):
            yield found


def _is_combined(schema: Schema) -> bool:
    """True if several schemas describe the same object."""
    provided = [key for key in (*IN_PLACE, "properties", "required") if schema.get(key)]
    all_of = schema.get("allOf")
    return (len(provided) > 1 and provided != ["properties", "required"]) or (
        isinstance(all_of, list) and len(all_of) > 1
    )


def _walk(value: Any) -> Iterator[Schema]:
    """Yields all objects within a schema."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(each)
