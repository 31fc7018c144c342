from typing import Any

import msgspec
import pytest

from frontend.api.parameters.grammar import GrammarFields, make_grammar
from messages.errors import RequestError
from messages.ring.requests import Grammar

SCHEMA = '{"type": "array"}'


def read(text: str) -> Grammar | None:
    return make_grammar(msgspec.json.decode(text, type=GrammarFields))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"response_format": null, "structured_outputs": null, "guided_json": null, "guided_choice": null}',
        '{"response_format": {"type": "text"}}',
    ],
)
def test_nothing_requested(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "kind", "grammar", "param"),
    [
        ('{"response_format": {"type": "json_object"}}', "json_schema", '{"type":"object"}', "response_format"),
        ('{"structured_outputs": {"json_object": true}}', "json_schema", '{"type":"object"}', "json_object"),
        (f'{{"guided_json": {SCHEMA}}}', "json_schema", SCHEMA, "guided_json"),
        ('{"guided_json": "{\\"type\\": 5}"}', "json_schema", '{"type": 5}', "guided_json"),
        (f'{{"structured_outputs": {{"json": {SCHEMA}}}}}', "json_schema", SCHEMA, "structured_outputs.json"),
        ('{"guided_regex": "a+"}', "regex", "a+", "guided_regex"),
        ('{"structured_outputs": {"regex": "a+"}}', "regex", "a+", "structured_outputs.regex"),
        ('{"guided_choice": ["a", "b"]}', "choice", '["a","b"]', "guided_choice"),
        ('{"structured_outputs": {"grammar": "start: \\"a\\""}}', "lark", 'start: "a"', "structured_outputs.grammar"),
        (
            '{"response_format": {"type": "structural_tag", "structures": [1], "triggers": []}}',
            "structural_tag",
            '{"structures":[1],"triggers":[]}',
            "response_format",
        ),
        (
            '{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": true}}}',
            "json_schema",
            "true",
            "response_format",
        ),
    ],
)
def test_every_field_becomes_a_grammar(text: str, kind: str, grammar: str, param: str) -> None:
    made = read(text)
    assert made is not None
    assert (made.kind, made.text) == (kind, grammar)
    assert made.param.endswith(param)
    assert made.whitespace is None


FORMS = [
    f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {SCHEMA}}}}}',
    f'{{"type": "json_schema", "schema": {SCHEMA}}}',
    f'{{"type": "json_schema", "name": "x", "strict": true, "description": "d", "schema": {SCHEMA}}}',
    f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {SCHEMA}}}, "strict": true}}',
    f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {SCHEMA}}}, "schema": {SCHEMA}}}',
    f'{{"type": "json_schema", "value": {SCHEMA}}}',
    f'{{"type": "json_object", "schema": {SCHEMA}}}',
    f'{{"type": "json_object", "json_schema": {{"name": "x", "schema": {SCHEMA}}}}}',
    f'{{"type": "json_object", "value": {SCHEMA}}}',
    f'{{"type": "json", "value": {SCHEMA}}}',
    f'{{"type": "json", "schema": {SCHEMA}, "value": {{"type":"array"}}}}',
]


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_other_servers_mean_the_same(form: str) -> None:
    assert read(f'{{"response_format": {form}}}') == Grammar("json_schema", SCHEMA, "response_format")


@pytest.mark.parametrize("form", ['{"type": "json"}', '{"type": "json_object", "schema": {}}'])
def test_json_without_a_schema_is_an_object(form: str) -> None:
    assert read(f'{{"response_format": {form}}}') == Grammar("json_schema", '{"type":"object"}', "response_format")


@pytest.mark.parametrize(
    "text",
    [
        f'{{"structured_outputs": {{"json": {SCHEMA}}}, "guided_json": {{"type":"array"}}}}',
        f'{{"structured_outputs": {{"json": {SCHEMA}}}, "response_format": {FORMS[0]}, "guided_json": {SCHEMA}}}',
        '{"structured_outputs": {"regex": "a+"}, "guided_regex": "a+"}',
        '{"structured_outputs": {"choice": ["a", "b"]}, "guided_choice": ["a", "b"]}',
        '{"structured_outputs": {"grammar": "start: \\"a\\""}, "guided_grammar": "start: \\"a\\""}',
        '{"structured_outputs": {"json_object": true}, "response_format": {"type": "json_object"}}',
    ],
)
def test_several_fields_with_the_same_value_are_one(text: str) -> None:
    assert read(text) is not None


@pytest.mark.parametrize("form", [f'{{"guided_json": {SCHEMA}', f'{{"response_format": {FORMS[0]}'])
@pytest.mark.parametrize("value", [True, False])
def test_objects_can_be_left_open(form: str, value: bool) -> None:
    made = read(f'{form}, "structured_outputs": {{"disable_additional_properties": {str(value).lower()}}}}}')
    assert made is not None
    assert made.closes_objects is value
    made = read(f"{form}}}")
    assert made is not None
    assert made.closes_objects is None


def test_white_space() -> None:
    made = read('{"structured_outputs": {"json": {}, "whitespace_pattern": "[ ]?"}}')
    assert made is not None
    assert made.whitespace == "[ ]?"
    made = read('{"structured_outputs": {"json": {}, "disable_any_whitespace": true}}')
    assert made is not None
    assert made.whitespace == ""


@pytest.mark.parametrize(
    ("text", "param", "words"),
    [
        ('{"guided_json": {}, "guided_regex": "a"}', "guided_regex", "give one of them"),
        ('{"structured_outputs": {"json": {}, "choice": ["a"]}}', "structured_outputs.choice", "give one of them"),
        (
            '{"response_format": {"type": "json_object"}, "guided_json": {}}',
            "guided_json",
            "response_format and guided_json",
        ),
        ('{"response_format": {"type": "json_schema"}}', "response_format.json_schema", "required"),
        (
            '{"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}',
            "response_format.json_schema.name",
            "name is required",
        ),
        (
            '{"response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": {}}}}',
            "response_format.json_schema.name",
            "name is required",
        ),
        (
            '{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}, "schema": true}}',
            "response_format",
            "not in the same way: give one of them",
        ),
        ('{"response_format": {"type": "text", "schema": {}}}', "response_format.schema", 'set "type": "json_schema"'),
        (f'{{"guided_json": {SCHEMA}, "structured_outputs": {{"json": {{}}}}}}', "guided_json", "give one of them"),
        ('{"guided_regex": "{}", "guided_json": {}}', "guided_regex", "give one of them"),
        ('{"structured_outputs": {}}', "structured_outputs", "none of them is given"),
        ('{"structured_outputs": {"json": null, "json_object": false}}', "structured_outputs", "none of them is given"),
        (
            '{"structured_outputs": {"whitespace_pattern": " ", "disable_any_whitespace": true}}',
            "structured_outputs",
            "json, regex, choice, grammar, json_object and structural_tag",
        ),
        ('{"response_format": {"type": "structural_tag", "format": {}}}', "response_format", "structures and triggers"),
        (f'{{"guided_regex": "{"a" * 300_000}"}}', "guided_regex", "at most 262144 characters"),
        ('{"structured_outputs": {"disable_additional_properties": true}}', "structured_outputs", "none of them is"),
    ],
)
def test_what_cannot_be_is_refused(text: str, param: str, words: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(text)
    assert (raised.value.info.status, raised.value.info.param) == (400, param)
    assert words in raised.value.info.message


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"jsn": {}}},
        {"response_format": {"type": "json_object", "jsonschema": {}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schemas": {}}}},
        {"guided_choice": []},
        {"guided_regex": ""},
    ],
)
def test_a_misspelled_or_empty_part_is_never_dropped(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, GrammarFields)
