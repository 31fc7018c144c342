"""Objects have only the properties that their schemas name, unless these mention others."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from messages.config.server import ModelFacts
from messages.ring.requests import Grammar
from runtime.grammars import GrammarCompiler
from tests.tokenizer_proc.test_schema_rules import READERS, Read, accepts, by_tag
from tokenizer_proc.closed_objects import MAX_STEPS, close_objects
from tokenizer_proc.grammars import GrammarReader, schema_grammar

MODEL_DIR = str(Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2")
FACTS = ModelFacts(model_dir=MODEL_DIR, tokenizer_dir=MODEL_DIR, served_names=("m",), vocab_size=3072, max_model_len=9)
Schema = dict[str, Any]

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def objects(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties]}


BASE = objects(x=NUMBER)
REFERENCE = {"$ref": "#/$defs/base"}
DEFINED = {"$defs": {"base": BASE}}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(MODEL_DIR, 3072, (0,))


CASES: list[tuple[Schema, str, str]] = [
    (objects(x=NUMBER), '{"x": 1}', '{"x": 1, "z": 1}'),
    (objects(), "{}", '{"z": 1}'),
    (objects(a=BASE), '{"a": {"x": 1}}', '{"a": {"x": 1, "z": 1}}'),
    (objects(a={"type": "array", "items": BASE}), '{"a": [{"x": 1}]}', '{"a": [{"x": 1, "z": 1}]}'),
    ({"type": "array", "prefixItems": [BASE], "minItems": 1}, '[{"x": 1}]', '[{"x": 1, "z": 1}]'),
    ({"type": "object", "additionalProperties": BASE}, '{"k": {"x": 1}}', '{"k": {"x": 1, "z": 1}}'),
    ({**REFERENCE, **DEFINED}, '{"x": 1}', '{"x": 1, "z": 1}'),
    ({"anyOf": [REFERENCE, {"type": "null"}], **DEFINED}, '{"x": 1}', '{"x": 1, "z": 1}'),
    ({"oneOf": [BASE, {"type": "null"}]}, '{"x": 1}', '{"x": 1, "z": 1}'),
    ({"allOf": [REFERENCE], "description": "as pydantic 1 writes it", **DEFINED}, '{"x": 1}', '{"x": 1, "z": 1}'),
    ({"allOf": [REFERENCE, objects(y=TEXT)], **DEFINED}, '{"x": 1, "y": "a"}', '{"x": 1, "y": "a", "z": 1}'),
    ({**REFERENCE, **objects(y=TEXT), **DEFINED}, '{"x": 1, "y": "a"}', '{"x": 1, "y": "a", "z": 1}'),
    ({"anyOf": [BASE, objects(y=TEXT)], "properties": {"k": NUMBER}}, '{"x": 1, "k": 1}', '{"x": 1, "z": 1}'),
    ({"properties": {"a": NUMBER}, "required": ["a", "b"]}, '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "z": 1}'),
    (
        {**objects(a=REFERENCE, b={"allOf": [REFERENCE, objects(y=TEXT)]}), **DEFINED},
        '{"a": {"x": 1}, "b": {"x": 1, "y": "a"}}',
        '{"a": {"x": 1, "z": 1}, "b": {"x": 1, "y": "a"}}',
    ),
    (
        {**REFERENCE, "$defs": {"base": {"type": "object", "properties": {"next": REFERENCE}}}},
        '{"next": {"next": {}}}',
        '{"next": {"next": {"z": 1}}}',
    ),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [BASE, {"properties": {"n": {"$ref": "#/$defs/a"}}}]}}},
        '{"x": 1, "n": {"x": 2}}',
        '{"x": 1, "n": {"x": 2, "z": 3}}',
    ),
]


@READERS
@pytest.mark.parametrize(("schema", "good", "bad"), CASES)
def test_objects_have_no_other_properties(
    compiler: GrammarCompiler, read: Read, schema: Schema, good: str, bad: str
) -> None:
    begin, end = ("<f>", ";") if read is by_tag else ("", "")
    grammar = read(compiler, schema)
    assert accepts(compiler, grammar, f"{begin}{good}{end}")
    assert not accepts(compiler, grammar, f"{begin}{bad}{end}")


OPEN: list[Schema] = [
    {**BASE, "additionalProperties": True},
    {**BASE, "additionalProperties": NUMBER},
    {**BASE, "patternProperties": {"^z": NUMBER}},
    {**BASE, "unevaluatedProperties": True},
    {**BASE, "minProperties": 2},
    {"type": "object"},
    {"type": "object", "required": ["x"]},
    {"allOf": [{"type": "object"}, {"required": ["x"]}]},
    {"allOf": [{**REFERENCE}, {"type": "object", "additionalProperties": True}], **DEFINED},
]


@READERS
@pytest.mark.parametrize("schema", OPEN)
def test_a_schema_that_mentions_other_properties_leaves_its_object_open(
    compiler: GrammarCompiler, read: Read, schema: Schema
) -> None:
    begin, end = ("<f>", ";") if read is by_tag else ("", "")
    assert accepts(compiler, read(compiler, schema), f'{begin}{{"x": 1, "z": 1}}{end}')


def test_the_objects_of_a_grammar_can_stay_open(compiler: GrammarCompiler) -> None:
    reader = GrammarReader(FACTS)
    for closes, is_good in ((None, False), (True, False), (False, True)):
        grammar = Grammar("json_schema", json.dumps(BASE), "guided_json", closes_objects=closes)
        assert accepts(compiler, reader.check(grammar).text, '{"x": 1, "z": 1}') is is_good


def test_conditions_stay_as_they_are() -> None:
    for key in ("not", "if", "then", "else", "propertyNames"):
        assert close_objects({key: BASE}) == {key: BASE}


def test_the_work_for_combined_objects_is_bounded() -> None:
    """A reference costs what its target has, the cost of many references to a large one is not their product."""
    wide = {"properties": {f"p{number}": {} for number in range(1_000)}}
    parts = [{"$ref": "#/$defs/wide", "properties": {"a": {}}} for _ in range(1_000)]
    closed = close_objects({"$defs": {"wide": wide}, "prefixItems": parts})
    num_names = sum(len(part["properties"]) for part in closed["prefixItems"])
    assert 1_000 < num_names <= MAX_STEPS + 2_000


class Wheel(BaseModel):
    size: float


class Car(BaseModel):
    name: str
    wheels: list[Wheel]
    spare: Wheel | None = None


def test_the_models_of_pydantic_are_closed(compiler: GrammarCompiler) -> None:
    grammar = schema_grammar(json.dumps(Car.model_json_schema()))
    assert accepts(compiler, grammar, '{"name": "a", "wheels": [{"size": 1.5}], "spare": null}')
    assert not accepts(compiler, grammar, '{"name": "a", "wheels": [{"size": 1.5, "z": 1}]}')
    assert not accepts(compiler, grammar, '{"name": "a", "wheels": [], "z": 1}')
