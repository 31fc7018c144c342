"""Forced calls with arguments between tags: the grammar follows the schema, and the parser reads what it accepts."""

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from frontend.parsing.forced_calls import force_calls
from frontend.parsing.formats import TOOL_FORMATS
from frontend.parsing.marked_format import CallSyntax
from frontend.parsing.model_format import choose_format
from messages.ring.requests import CallGrammar
from runtime.grammars import GrammarCompiler, GrammarError
from tests.frontend.parsing.reading import read
from tokenizer_proc.grammars import call_grammar

MODEL_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["°C", "K", 7]},
        "options": {"$ref": "#/$defs/Options"},
        "hours": {"type": "array", "items": {"type": "integer"}},
        "height": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tree": {"$ref": "#/$defs/Cycle"},
    },
    "required": ["city", "days"],
    "$defs": {
        "Options": {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False},
        "Cycle": {"$ref": "#/$defs/Cycle"},
    },
}
TOOLS: dict[str, Any] = {"get_weather": WEATHER, "now": {}}
TAGGED = [name for name, entry in TOOL_FORMATS.items() if entry.forced is not None and entry.forced.tag is not None]

GOOD: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"city": "New\n  York <b> ü", "days": "3"}, {"city": "New\n  York <b> ü", "days": 3}),
    ({"city": '{"a": 1}', "days": "12", "unit": "°C"}, {"city": '{"a": 1}', "days": 12, "unit": "°C"}),
    (
        {"city": "x", "days": "3", "unit": "K", "options": '{"a": true}', "hours": "[1, 2]", "height": "1.5"},
        {"city": "x", "days": 3, "unit": "K", "options": {"a": True}, "hours": [1, 2], "height": 1.5},
    ),
    (
        {"city": "x", "days": "3", "height": "null", "name": "null"},
        {"city": "x", "days": 3, "height": None, "name": None},
    ),
    ({"city": "5", "days": "3", "name": "Ada", "tree": "oak"}, {"city": "5", "days": 3, "name": "Ada", "tree": "oak"}),
]
BAD: list[dict[str, str]] = [
    {"city": "x"},
    {"days": "3"},
    {"city": "x", "days": "three"},
    {"city": "x", "days": "0"},
    {"city": "x", "days": "3", "unit": "F"},
    {"city": "x", "days": "3", "options": '{"b": 1}'},
    {"city": "x", "days": "3", "hours": "[1, "},
    {"city": "x", "days": "3", "other": "1"},
]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(str(MODEL_DIR), 3072, (0,))


def forced_of(parser: str) -> CallSyntax:
    forced = TOOL_FORMATS[parser].forced
    assert forced is not None
    return forced


def write(parser: str, name: str, arguments: dict[str, str]) -> str:
    forced = forced_of(parser)
    assert forced.tag is not None
    begin, end = forced.tag
    tags = "".join(begin.replace("{key}", key) + value + end for key, value in arguments.items())
    return forced.begin.replace("{name}", name) + tags + forced.end


def takes(compiler: GrammarCompiler, parser: str, text: str, tools: dict[str, Any] = TOOLS) -> bool:
    """True if the grammar accepts the whole text and may end with it."""
    forced = forced_of(parser)
    calls = CallGrammar((), forced.separator, tuple(tools), forced.tag)
    calls = calls.with_calls(force_calls(forced, tools, allows_several=True))
    tokenizer = compiler.tokenizer()
    grammar = call_grammar(calls, tokenizer)
    assert not LLMatcher.validate_grammar(grammar, tokenizer)
    matcher = LLMatcher(tokenizer, grammar)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("parser", TAGGED)
def test_what_follows_the_schema_is_accepted_and_read_as_the_call(compiler: GrammarCompiler, parser: str):
    format = choose_format(parser, "none", "").with_tools
    assert format is not None
    for written, arguments in GOOD:
        text = write(parser, "get_weather", written)
        assert takes(compiler, parser, text), text
        assert read(format, text, TOOLS).values == (("get_weather", arguments),)
    text = write(parser, "now", {})
    assert takes(compiler, parser, text)
    assert read(format, text, TOOLS).values == (("now", {}),)


@pytest.mark.parametrize("parser", TAGGED)
def test_what_does_not_follow_it_is_not(compiler: GrammarCompiler, parser: str):
    for written in BAD:
        assert not takes(compiler, parser, write(parser, "get_weather", written)), written
    assert not takes(compiler, parser, write(parser, "other", {}))
    assert not takes(compiler, parser, "Well. " + write(parser, "now", {}))


def test_calls_of_any_arguments_are_text_up_to_the_mark(compiler: GrammarCompiler):
    tools = dict.fromkeys(TOOLS)
    assert takes(compiler, "glm45", "<tool_call>now\nwhat you will</tool_call>", tools)
    assert not takes(compiler, "glm45", "<tool_call>later\nwhat you will</tool_call>", tools)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "anyOf"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, "ref"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "'a'"),
    ],
)
def test_a_schema_that_relates_arguments_to_each_other_is_refused(
    compiler: GrammarCompiler, schema: dict[str, Any], word: str
):
    with pytest.raises(GrammarError, match=word):
        takes(compiler, "glm45", "", {"now": schema})


def test_several_calls_stand_apart_as_the_format_has_it(compiler: GrammarCompiler):
    for parser, separator in (("glm45", "\n"), ("seed_oss", "\n"), ("minicpm5", "\n"), ("minimax_m2", None)):
        one = write(parser, "now", {})
        assert takes(compiler, parser, one + (separator or "\n") + one) == (separator is not None)
        assert not takes(compiler, parser, one + one)
    for parser in ("functionary", "gemma4"):
        forced = forced_of(parser)
        one = forced.begin.replace("{name}", "now") + "{}" + forced.end
        assert takes(compiler, parser, one + one)
