"""Forced calls: text that their schemas accept, between their marks, is parsed as these calls."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from frontend.parsing.forced_calls import force_calls
from frontend.parsing.formats import TOOL_FORMATS
from frontend.parsing.model_format import choose_format
from tests.frontend.parsing.reading import read

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}},
}
OTHER = {
    "type": "object",
    "properties": {"root": {"$ref": "#/definitions/Node"}},
    "definitions": {"Node": {"type": "integer"}},
}
TOOLS: dict[str, Any] = {"tree": TREE, "other": OTHER, "plain": {}}
GOOD: list[tuple[str, Any]] = [
    ("other", {"root": 5}),
    ("plain", {}),
    ("other", {}),
]
BAD: list[tuple[str, Any]] = [("other", {"root": "x"}), ("tree", {}), ("tree", {"root": {}}), ("plain", 5)]
FORCED = [name for name, entry in TOOL_FORMATS.items() if entry.forced is not None and entry.forced.is_json]


def accepted(parser: str, calls: list[tuple[str, Any]], *, allows_several: bool = True) -> str | None:
    """Returns the text of the calls if a schema accepts it."""
    forced = TOOL_FORMATS[parser].forced
    assert forced is not None
    for begin, schema, end in force_calls(forced, TOOLS, allows_several=allows_several):
        assert schema is not None
        Draft202012Validator.check_schema(schema)
        named: list[dict[str, Any]] = [
            {name: arguments} if forced.name_key is None else {forced.name_key: name, forced.arguments_key: arguments}
            for name, arguments in calls
        ]
        if "{name}" in forced.begin:
            value, is_meant = calls[0][1], begin == forced.begin.replace("{name}", calls[0][0])
        else:
            value, is_meant = named if forced.is_list else named[0], True
        if is_meant and Draft202012Validator(schema).is_valid(value):
            return begin + json.dumps(value) + end
    return None


@pytest.mark.parametrize("parser", FORCED)
def test_what_a_schema_accepts_is_read_as_the_call(parser: str):
    format = choose_format(parser, "none", "").with_tools
    assert format is not None
    for call in GOOD:
        text = accepted(parser, [call])
        assert text is not None, call
        assert read(format, text, TOOLS).values == (call,)
    for call in BAD:
        assert accepted(parser, [call]) is None, call


def test_a_list_may_have_several_calls_where_they_may_be_parallel():
    format = choose_format("mistral", "none", "").with_tools
    assert format is not None
    text = accepted("mistral", GOOD)
    assert text is not None
    assert read(format, text, TOOLS).values == tuple(GOOD)
    assert accepted("mistral", GOOD, allows_several=False) is None
    assert accepted("mistral", GOOD[:1], allows_several=False) is not None


def test_every_format_that_is_json_can_be_forced():
    tagged = {name for name, entry in TOOL_FORMATS.items() if entry.forced is not None and entry.forced.tag}
    assert tagged == {"qwen3_coder", "glm45", "seed_oss", "minimax_m2", "minicpm5"}
    others = {"pythonic", "olmo3", "lfm2", "gemma4", "functiongemma", "deepseek_v32"}
    assert set(TOOL_FORMATS) - set(FORCED) - tagged == others
