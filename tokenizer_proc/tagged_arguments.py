"""Rules in Lark's form for arguments that are not one JSON object: each value stands between two texts."""

# pyright: basic
# (values here are whatever JSON holds)

import json
from typing import TYPE_CHECKING, Any

from messages.errors import quoted
from runtime.grammars import GrammarError
from tokenizer_proc.marked_text import marks, text_until
from tokenizer_proc.schema_faults import DEFINITIONS, resolve
from tokenizer_proc.schema_rules import simplify

if TYPE_CHECKING:
    from llguidance import LLTokenizer

COMBINED = {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "minProperties", "dependentRequired", "dependentSchemas"}
"""Keywords of an object that relate its properties to each other, which a sequence of values cannot follow."""
MAX_REFERENCES = 8
"""More in a row are a cycle."""


def tagged_rules(
    name: str,
    schema: dict[str, Any],
    tag: tuple[str, str],
    options: dict[str, Any],
    tokenizer: "LLTokenizer",
    *,
    is_closed: bool = True,
) -> list[str]:
    """Returns the rule `name` and those that it uses: the properties of `schema` in its order, optional ones or not.

    A string is written as it is; its pattern, format and length are not enforced. Other values are JSON. Raises
    `GrammarError` for a schema that relates properties to each other.
    """
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if unknown := sorted({*required} - {*properties}) or sorted(COMBINED & {*schema}):
        raise GrammarError(f"arguments between tags cannot follow {quoted(unknown[0])}")
    definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
    numbered = [(f"{name}_{number}", *item) for number, item in enumerate(properties.items())]
    rules = [f"{name}: " + (" ".join(rule if key in required else f"{rule}?" for rule, key, _ in numbered) or '""')]
    for rule, key, value in numbered:
        begin, end = marks(tag[0].replace("{key}", key), tokenizer), marks(tag[1], tokenizer)
        choices = value.get("enum", [value["const"]] if "const" in value else None) if isinstance(value, dict) else None
        if not _is_text(value, schema):
            json_value = {**simplify({**definitions, **value}, is_closed=is_closed), "x-guidance": options}
            rules.append(f"{rule}: {begin} {rule}_value {end}\n{rule}_value: %json {json.dumps(json_value)}")
        elif choices is not None:
            texts = " | ".join(json.dumps(each if isinstance(each, str) else json.dumps(each)) for each in choices)
            rules.append(f"{rule}: {begin} ({texts}) {end}")
        else:
            rules += [f"{rule}: {begin} {rule}_value", text_until(f"{rule}_value", tag[1].lstrip("\n"), tokenizer)]
    return rules


def _is_text(schema: Any, whole: dict[str, Any], num_references: int = 0) -> bool:
    """Returns whether a value may be a string, which is then written without quotes."""
    if not isinstance(schema, dict) or num_references > MAX_REFERENCES:
        return True
    if "$ref" in schema:
        return any(_is_text(found, whole, num_references + 1) for _, found in resolve(schema["$ref"], whole))
    types = schema.get("type")
    if types is not None:
        return "string" in ([types] if isinstance(types, str) else types)
    parts = [*(schema.get("anyOf") or []), *(schema.get("oneOf") or []), *(schema.get("allOf") or [])]
    return not parts or any(_is_text(part, whole, num_references) for part in parts)
