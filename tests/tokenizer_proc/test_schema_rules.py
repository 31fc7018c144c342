"""Restrictions of a schema are enforced exactly or rejected; keywords without effect are accepted."""

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import pytest
from pydantic import BaseModel, Field

from messages.ring.requests import CallGrammar
from runtime.grammars import GrammarCompiler, GrammarError
from tokenizer_proc.grammars import call_grammar, lark_grammar, schema_grammar
from tokenizer_proc.structural_tags import structural_tag_grammar

MODEL_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"
EXACT = 2**53
DEEP = '{"properties": {"a": {"items": {"anyOf": [{"type": "null"}, SCHEMA]}}}}'


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(str(MODEL_DIR), 3072, (0,))


def accepts(compiler: GrammarCompiler, grammar: str, text: str) -> bool:
    matcher = compiler.compile(grammar)
    ids = [token_id for character in text for token_id in compiler.tokenizer().tokenize_str(character)]
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def by_schema(compiler: GrammarCompiler, schema: Any) -> str:
    return schema_grammar(schema if isinstance(schema, str) else json.dumps(schema))


def by_call(compiler: GrammarCompiler, schema: Any) -> str:
    value = msgspec.json.decode(schema) if isinstance(schema, str) else schema
    return call_grammar(CallGrammar().with_calls([("", value, "")]), compiler.tokenizer())


def by_tag(compiler: GrammarCompiler, schema: Any) -> str:
    structure = {"begin": "<f>", "schema": json.loads(schema) if isinstance(schema, str) else schema, "end": ";"}
    return structural_tag_grammar(json.dumps({"structures": [structure], "triggers": ["<f>"]}), compiler.tokenizer())


def by_lark(compiler: GrammarCompiler, schema: Any) -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema, indent=1)
    return lark_grammar(f'start: value | "<" value ">"\nvalue: %json {text}\n// %json is not JSON here\n')


READERS = pytest.mark.parametrize("read", [by_schema, by_call, by_tag, by_lark])
Read = Callable[[GrammarCompiler, Any], str]


@READERS
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 2**64 - 1, "maximum": 2**64 - 1},
        {"type": "integer", "minimum": -(2**63)},
        {"type": "integer", "maximum": EXACT + 1},
        {"type": "integer", "exclusiveMinimum": EXACT},
        {"type": "integer", "exclusiveMaximum": -EXACT - 2},
        {"type": "number", "maximum": 2**62},
        {"minimum": EXACT + 2},
        {"multipleOf": EXACT + 1},
        {"const": 10**20},
        {"const": -(2**63)},
        {"const": {"ids": [1, {"id": EXACT + 1}]}},
        {"enum": ["a", EXACT + 1]},
        '{"const": 1e20}',
        '{"enum": [36893488147419103233]}',
    ],
)
@pytest.mark.parametrize("is_deep", [False, True])
def test_a_number_that_would_become_another_one_is_refused(
    compiler: GrammarCompiler, read: Read, schema: Any, is_deep: bool
) -> None:
    if is_deep:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        schema = DEEP.replace("SCHEMA", text)
    with pytest.raises(GrammarError, match="cannot be kept to exactly: numbers are exact up to 9007199254740992"):
        read(compiler, schema)


@READERS
def test_large_numbers_that_are_exact_are_kept_to(compiler: GrammarCompiler, read: Read) -> None:
    begin, end = ("<f>", ";") if read is by_tag else ("", "")
    for schema, good, bad in (
        ({"type": "integer", "minimum": -EXACT + 1, "maximum": EXACT - 1}, EXACT - 1, EXACT),
        ({"type": "integer", "minimum": EXACT + 2, "maximum": 2**62}, 2**62, 2**62 + 1),
        ({"type": "integer", "maximum": 2**63 - 1}, 2**63 - 1, 2**63),
        ({"type": "integer", "exclusiveMaximum": EXACT - 1}, EXACT - 2, EXACT - 1),
        ({"type": "number", "minimum": EXACT}, EXACT, EXACT - 1),
        ({"enum": [10**16, 10**18]}, 10**18, 10**18 + 1),
        ({"const": -(2**62)}, -(2**62), -(2**62) + 1),
    ):
        grammar = read(compiler, schema)
        assert accepts(compiler, grammar, f"{begin}{good}{end}"), schema
        assert not accepts(compiler, grammar, f"{begin}{bad}{end}"), schema


def test_a_float_is_not_rounded_to_an_integer_that_it_is_not(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match=r"9007199254740993\.0 cannot be kept to exactly"):
        schema_grammar('{"const": 9007199254740993.0}')
    assert accepts(compiler, schema_grammar('{"const": 0.1000000000000000055}'), "0.1")


FORBID_NOTHING: list[dict[str, Any]] = [
    {"propertyNames": {"type": "string"}},
    {"propertyNames": {"type": ["string", "null"], "description": "a name"}},
    {"propertyNames": True},
    {"propertyNames": {}},
    {"uniqueItems": False},
    {"uniqueItems": True, "maxItems": 1},
    {"not": False},
    {"if": {"type": "string"}},
    {"if": {"type": "string"}, "then": True, "else": {"title": "x"}},
    {"then": False},
    {"else": False},
    {"dependentRequired": {"a": []}},
    {"dependentSchemas": {"a": True}},
    {"dependencies": {"a": [], "b": {}}},
    {"contains": {"type": "null"}, "minContains": 0},
    {"minContains": 3, "maxContains": 4},
    {"unevaluatedProperties": True},
    {"unevaluatedItems": {}},
    {"format": "password"},
    {"pattern": "^c[a-z]+$", "format": "cuid"},
    *({"format": name} for name in ("x-my-own", "int32", "cuid", "byte", "")),
    *({"$schema": name} for name in ("draft-07", "https://json-schema.org/draft-07/schema#", "https://a.example/b c")),
]


@READERS
@pytest.mark.parametrize("keywords", FORBID_NOTHING)
def test_keywords_that_forbid_nothing_are_taken(
    compiler: GrammarCompiler, read: Read, keywords: dict[str, Any]
) -> None:
    nested = {"type": "object", "properties": {"a": {"type": ["object", "array", "string"], **keywords}}}
    for schema in ({"type": ["object", "array", "string"], **keywords}, nested):
        compiler.compile(read(compiler, schema))


@READERS
@pytest.mark.parametrize(
    "keywords",
    [
        {"propertyNames": {"maxLength": 3}},
        {"propertyNames": {"type": "null"}},
        {"propertyNames": {"enum": ["a"]}, "properties": {"b": {}}},
        {"propertyNames": False},
        {"uniqueItems": True},
        {"not": {}},
        {"not": True},
        {"if": {"type": "string"}, "then": {"minLength": 3}},
        {"if": {"type": "string"}, "else": False},
        {"dependentRequired": {"a": ["b"]}},
        {"dependentSchemas": {"a": False}},
        {"dependencies": {"a": ["b"]}},
        {"contains": {"type": "null"}},
        {"contains": True, "minContains": 0, "maxContains": 2},
        {"unevaluatedProperties": False},
        {"unevaluatedItems": {"type": "null"}},
        {"format": "iri", "type": "string"},
        {"format": "relative-json-pointer", "type": "string"},
        {"properties": {"a": {"not": {"type": "null"}}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"propertyNames": {"minLength": 2}}}},
    ],
)
def test_keywords_that_restrict_and_cannot_be_enforced_are_refused(
    compiler: GrammarCompiler, read: Read, keywords: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError):
        compiler.compile(read(compiler, keywords))


def test_what_is_no_schema_is_left_alone(compiler: GrammarCompiler) -> None:
    names = {"propertyNames": {"type": "integer"}, "not": {"type": "boolean"}, "uniqueItems": {"const": {"not": False}}}
    schema = {"type": "object", "properties": names, "required": list(names), "additionalProperties": False}
    grammar = schema_grammar(json.dumps(schema))
    assert accepts(compiler, grammar, '{"propertyNames": 1, "not": true, "uniqueItems": {"not": false}}')
    assert not accepts(compiler, grammar, '{"propertyNames": "x", "not": true, "uniqueItems": {"not": false}}')


@READERS
@pytest.mark.parametrize("name", ["a b", "List[int]", "Größe", "x<y>", "100%", "50%25", "a%20b", "a/b", "m~n", "M«K»"])
def test_references_are_taken_as_libraries_write_them(compiler: GrammarCompiler, read: Read, name: str) -> None:
    begin, end = ("<f>", ";") if read is by_tag else ("", "")
    escaped = name.replace("~", "~0").replace("/", "~1")
    for written in (escaped, quote(escaped, safe="~")):
        grammar = read(compiler, {"$defs": {name: {"type": "integer"}}, "$ref": f"#/$defs/{written}"})
        assert accepts(compiler, grammar, f"{begin}1{end}")
        assert not accepts(compiler, grammar, f"{begin}true{end}")


@READERS
def test_the_id_of_a_schema_may_be_any_text(compiler: GrammarCompiler, read: Read) -> None:
    compiler.compile(read(compiler, {"$id": "my schema, 100%", "type": "object", "properties": {"a": {"$id": "b c"}}}))


def test_an_old_draft_is_read_without_its_name(compiler: GrammarCompiler) -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema", "minimum": 1, "exclusiveMinimum": True}
    grammar = schema_grammar(json.dumps({**schema, "type": "integer"}))
    assert accepts(compiler, grammar, "2")
    assert not accepts(compiler, grammar, "1")


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        ({"type": "string", "enum": ["red", "blue"]}, '{"red": 1, "blue": 2}', '{"green": 1}'),
        ({"const": "red"}, '{"red": 1}', '{"blue": 1}'),
        ({"type": "string", "pattern": "^[a-c]+$"}, '{"ab": 1}', '{"xyz": 1}'),
    ],
)
def test_names_of_properties_are_enforced(compiler: GrammarCompiler, names: Any, good: str, bad: str) -> None:
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    grammar = schema_grammar(json.dumps(schema))
    assert accepts(compiler, grammar, good)
    assert not accepts(compiler, grammar, bad)
    assert not accepts(compiler, grammar, good.replace("1", '"x"'))


@pytest.mark.parametrize("read", [by_schema, by_tag, by_lark])
def test_white_space_is_bounded(compiler: GrammarCompiler, read: Read) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    grammar = read(compiler, schema | {"additionalProperties": False})
    begin, end = ("<f>", ";") if read is by_tag else ("", "")
    for text, is_good in (
        ('{"ok": true}', True),
        ('{ "ok" : true }', True),
        ('{\n  "ok": true\n}', True),
        ('{\n\t\t"ok":true}', True),
        ('{\n\n"ok": true}', False),
        ('{  "ok": true}', False),
        ("{\n" + " " * 21 + '"ok": true}', False),
    ):
        assert accepts(compiler, grammar, f"{begin}{text}{end}") is is_good, text


def test_white_space_that_is_requested_stays(compiler: GrammarCompiler) -> None:
    for schema, whitespace, text, is_good in (
        ('{"enum": [[1]]}', None, "[  1]", False),
        ('{"enum": [[1]]}', " *", "[  1]", True),
        ('{"enum": [[1]]}', "", "[ 1]", False),
        ('{"enum": [[1]], "x-guidance": {"whitespace_pattern": " *"}}', None, "[  1]", True),
    ):
        assert accepts(compiler, schema_grammar(schema, whitespace), text) is is_good


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool = True


class Everything(BaseModel):
    name: str = Field(min_length=1, max_length=20, description="a name")
    pet: Cat | Dog = Field(discriminator="kind")
    colours: list[Colour] = Field(max_length=3)
    sizes: dict[str, float]
    by_colour: dict[Colour, int]
    place: tuple[int, str] | None = None
    child: "Everything | None" = None


ZOD_4 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "positive": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        "tags": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        "by_colour": {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["red", "blue"]},
            "additionalProperties": {"type": "boolean"},
            "required": ["red", "blue"],
        },
        "any": {},
        "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "cuid": {"type": "string", "format": "cuid", "pattern": "^[cC][^\\s-]{8,}$"},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
    },
    "required": ["id", "positive", "tags", "by_colour", "any", "when", "cuid", "pair"],
    "additionalProperties": False,
}
OPENAI_STRICT = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
                "required": ["explanation", "output"],
                "additionalProperties": False,
            },
        },
        "final_answer": {"type": ["string", "null"], "description": "The answer"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["steps", "final_answer", "next"],
    "additionalProperties": False,
}


@READERS
@pytest.mark.parametrize("schema", [Everything.model_json_schema(), ZOD_4, OPENAI_STRICT])
def test_schemas_of_libraries_are_taken(compiler: GrammarCompiler, read: Read, schema: dict[str, Any]) -> None:
    if read in (by_call, by_lark) and schema is OPENAI_STRICT:
        schema = json.loads(json.dumps(schema).replace('{"$ref": "#"}', '{"type": "boolean"}'))
    compiler.compile(read(compiler, schema))
