"""Constraints on the answer: the fields of OpenAI's and vLLM's APIs, converted to one grammar."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Raw

from frontend.api.parameters.logit_bias import NonEmpty
from messages.errors import bad_request
from messages.ring.requests import Grammar, GrammarKind

MAX_GRAMMAR_BYTES = 1 << 18
ANY_OBJECT = '{"type":"object"}'

KINDS: dict[str, GrammarKind] = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}
"""The kind of grammar by the name of a field, of `structured_outputs` or after `guided_`."""

Choices = Annotated[list[NonEmpty], Meta(min_length=1)]

SCHEMA_TEXT = "a JSON schema (an object, true, or its text)"
CHOICES_TEXT = "a list of strings, neither it nor any of them empty"
FORMAT_TEXT = 'an object with a type: "text", "json_object", "json_schema", "json" or "structural_tag"'
SCHEMA_FORMAT_TEXT = '"json_schema": {"name": …, "schema": …}'
OUTPUTS_TEXT = "an object with one of json, regex, choice, grammar, json_object and structural_tag"


class SchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict` has no effect, as the schema is always enforced. `name` is required, as in OpenAI's API."""

    schema: Raw
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`structures`, `triggers` and `format` belong to a structural tag.

    Clients of other servers write the schema as `schema` or `value` next to any type of JSON ("json" is TGI's). The
    last three fields have no effect.
    """

    type: Literal["text", "json_object", "json_schema", "json", "structural_tag"]
    json_schema: SchemaFormat | None = None
    structures: Raw = msgspec.field(default_factory=Raw)
    triggers: Raw = msgspec.field(default_factory=Raw)
    format: Raw = msgspec.field(default_factory=Raw)
    schema: Raw = msgspec.field(default_factory=Raw)
    value: Raw = msgspec.field(default_factory=Raw)
    name: Raw = msgspec.field(default_factory=Raw)
    strict: Raw = msgspec.field(default_factory=Raw)
    description: Raw = msgspec.field(default_factory=Raw)


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's object. `disable_fallback` has no effect: there is only one backend.

    `disable_additional_properties` true or false: objects are closed, or left as the schema has them.
    """

    json: Raw = msgspec.field(default_factory=Raw)
    regex: NonEmpty | None = None
    choice: Choices | None = None
    grammar: NonEmpty | None = None
    json_object: bool | None = None
    structural_tag: Raw = msgspec.field(default_factory=Raw)
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None


class GrammarFields(msgspec.Struct, frozen=True, kw_only=True):
    """All fields that set a grammar; a body may have one of them, or several with the same value."""

    response_format: Annotated[ResponseFormat | None, Meta(description=FORMAT_TEXT)] = None
    structured_outputs: Annotated[StructuredOutputs | None, Meta(description=OUTPUTS_TEXT)] = None
    guided_json: Annotated[Raw, Meta(description=SCHEMA_TEXT)] = msgspec.field(default_factory=Raw)
    guided_regex: Annotated[NonEmpty | None, Meta(description="a regular expression, not empty")] = None
    guided_choice: Annotated[Choices | None, Meta(description=CHOICES_TEXT)] = None
    guided_grammar: Annotated[NonEmpty | None, Meta(description="a grammar in Lark or GBNF, not empty")] = None


class _GrammarField(NamedTuple):
    """A field and the grammar that it sets."""

    param: str
    kind: GrammarKind
    text: str


def make_grammar(fields: GrammarFields) -> Grammar | None:
    """Returns the grammar that a body sets, `None` if it sets none. Raises `RequestError` (400).

    The grammar itself is validated later, when the tokenizer compiles it.
    """
    outputs = fields.structured_outputs or StructuredOutputs()
    asked = [
        *_asked_by_format(fields.response_format),
        *_asked_by({f"structured_outputs.{name}": getattr(outputs, name) for name in KINDS}),
        *_asked_by({f"guided_{name}": getattr(fields, f"guided_{name}") for name in KINDS}),
    ]
    if outputs.json_object:
        asked.append(_GrammarField("structured_outputs.json_object", "json_schema", ANY_OBJECT))
    if is_sent(outputs.structural_tag):
        text = _text_of(outputs.structural_tag)
        asked.append(_GrammarField("structured_outputs.structural_tag", "structural_tag", text))
    if fields.structured_outputs is not None and not asked:
        raise bad_request(f"structured_outputs must be {OUTPUTS_TEXT}: none of them is given", "structured_outputs")
    if not asked:
        return None
    (param, kind, text) = asked[0]
    if len(text) > MAX_GRAMMAR_BYTES:
        raise bad_request(f"{param} may have at most {MAX_GRAMMAR_BYTES} characters, got {len(text)}", param)
    for other in asked[1:]:
        if other.kind != kind or not _agree(other.text, text):
            names = " and ".join(each.param for each in asked)
            text = f"{names} each constrain the answer, and not in the same way: give one of them"
            raise bad_request(text, other.param)
    whitespace = "" if outputs.disable_any_whitespace else outputs.whitespace_pattern
    return Grammar(kind, text, param, whitespace, closes_objects=outputs.disable_additional_properties)


def _asked_by_format(response_format: ResponseFormat | None) -> list[_GrammarField]:
    param = "response_format"
    if response_format is None:
        return []
    schemas = {name: raw for name in ("schema", "value") if is_sent(raw := getattr(response_format, name))}
    if response_format.type in ("text", "structural_tag") and schemas:
        name = next(iter(schemas))
        text = f'{param}.{name} is not for the type "{response_format.type}": set "type": "json_schema"'
        raise bad_request(text, f"{param}.{name}")
    if response_format.type == "text":
        return []
    if response_format.type != "structural_tag":
        return _asked_by_schemas(response_format, schemas)
    parts = {"structures": response_format.structures, "triggers": response_format.triggers}
    if not all(map(is_sent, parts.values())):
        raise bad_request(
            "response_format must have structures and triggers with this type (and no other format)", param
        )
    return [_GrammarField(param, "structural_tag", msgspec.json.encode(parts).decode())]


def _asked_by_schemas(response_format: ResponseFormat, schemas: dict[str, Raw]) -> list[_GrammarField]:
    """Returns a field for each place with a schema; `schemas` are those next to the type."""
    param, named = "response_format", response_format.json_schema
    if named is not None:
        if not named.name:
            text = f"{param}.json_schema.name is required, as in {SCHEMA_FORMAT_TEXT}"
            raise bad_request(text, f"{param}.json_schema.name")
        schemas = {"json_schema": named.schema, **schemas}
    if not schemas and response_format.type == "json_schema":
        text = f"{param}.json_schema is required with this type, as in {SCHEMA_FORMAT_TEXT}"
        raise bad_request(text, f"{param}.json_schema")
    texts = [_text_of(raw) for raw in schemas.values()]
    is_any = response_format.type != "json_schema" and texts in ([], ["{}"])
    return [_GrammarField(param, "json_schema", text) for text in ([ANY_OBJECT] if is_any else texts)]


def _asked_by(provided: dict[str, Raw | str | list[str] | None]) -> Iterator[_GrammarField]:
    """Yields the grammars of fields whose names end in one of `KINDS`."""
    for kind, (param, value) in zip(KINDS.values(), provided.items(), strict=True):
        match value:
            case str():
                yield _GrammarField(param, kind, value)
            case list():
                yield _GrammarField(param, kind, msgspec.json.encode(value).decode())
            case Raw() if is_sent(value):
                yield _GrammarField(param, kind, _text_of(value))
            case _:
                pass


def _agree(one: str, other: str) -> bool:
    if one == other:
        return True
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        return len(other) <= MAX_GRAMMAR_BYTES >= len(one) and msgspec.json.decode(one) == msgspec.json.decode(other)
    return False


def is_sent(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:4]) not in (b"", b"null")


def _text_of(raw: Raw) -> str:
    """Returns the JSON text of a value, or the string itself if the value is a string."""
    text = bytes(raw).decode()
    if not text.startswith('"'):
        return text
    value: Any = msgspec.json.decode(text)
    return value
