"""Response templates of transformers: our results equal those of `parse_response`."""

import json
from typing import Any

import pytest

from frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.parsing.model_format import choose_format
from frontend.parsing.regions import Format, FormatError, read_template
from tests.frontend.parsing.reading import Reading, read
from tests.frontend.parsing.recorded import RECORDED, TOOLS, Recorded

parse_response: Any = pytest.importorskip("transformers.utils.chat_parsing").parse_response

THINK = {"open": "<think>", "close": "</think>", "content": "text"}
TEMPLATES: dict[str, dict[str, Any]] = {
    "qwen": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)", "content": "text"},
        },
    },
    "qwen3_5": {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
        },
    },
    "gemma4": {
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"], "content": "text"},
        },
    },
}
"""Templates that transformers (5.23) uses for models without their own."""

WEATHER = '<|tool_call>call:get_weather{city:<|"|>São "Paulo"<|"|>,days:2}<tool_call|>'
ANSWERS = [
    (
        "qwen",
        "<|im_start|>assistant\n",
        '<think>\nHm\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
    ("qwen", "<|im_start|>assistant\n<think>\n", "So.\n</think>\n\nIt is sunny.<|im_end|>"),
    ("qwen", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "It is sunny.<|im_end|>"),
    (
        "qwen",
        "<|im_start|>assistant\n",
        'One moment.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\\u00fcrich", "days": 1}}\n'
        '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>',
    ),
    (
        "qwen3_5",
        "<|im_start|>assistant\n<think>\n",
        "Hm.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n7"
        "\n</parameter>\n<parameter=exact>\ntrue\n</parameter>\n</function>\n</tool_call>",
    ),
    ("gemma4", "<|turn>model\n", f"<|channel>thought\nHm.<channel|>{WEATHER}{WEATHER}<|tool_response>"),
    ("gemma4", "<|turn>model\n", "It is sunny.<turn|>"),
]


def tools_of(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in parameters.items()
    ]


def by_transformers(text: str, template: dict[str, Any], prefix: str) -> Reading:
    message = parse_response(text, template, prefix=prefix, tools=tools_of(TOOLS))
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return Reading(
        message.get("content", ""),
        message.get("reasoning_content", ""),
        [(name, json.dumps(arguments)) for name, arguments in calls],
        [],
    )


@pytest.mark.parametrize(("model_type", "prefix", "text"), ANSWERS)
def test_it_is_read_as_transformers_reads_it(model_type: str, prefix: str, text: str):
    template = TEMPLATES[model_type]
    expected = by_transformers(text, template, f"<|im_start|>user\nhi<think>{prefix}")
    for cuts in ([], range(len(text)), *([cut] for cut in range(len(text)))):
        got = read(read_template(template), text, TOOLS, f"hi<think>{prefix}", cuts)
        assert (got.content, got.reasoning, got.values) == (expected.content, expected.reasoning, expected.values)


def _plain(field: dict[str, Any]) -> dict[str, Any]:
    """Returns the field without our extensions."""
    return {key: value for key, value in field.items() if key != "starts_content"}


def own_template(recorded: Recorded) -> dict[str, Any] | None:
    """Returns the built-in format as a response template, if transformers could express it."""
    tools, reasoning = TOOL_FORMATS.get(recorded.tool_call_parser), REASONING_FORMATS.get(recorded.reasoning_parser)
    fields = tools.fields if tools else ()
    named = [field for field in fields if "<tool_call>" in recorded.text]
    if (
        any(other in recorded.name for other in ("no opener", "in a string"))
        or any("starts_content" in field for field in fields)
        or (fields and not named)
        or recorded.tool_call_parser == "mistral"
    ):
        return None
    close = dict(tools.content_close if tools else {})
    return {
        "start_anchor": "the beginning",
        "fields": {
            "content": close,
            **({"tool_calls": {**named[0], "repeats": True}} if named else {}),
            **({"reasoning_content": _plain(reasoning.fields[0])} if reasoning else {}),
        },
    }


COMPARED = [recorded for recorded in RECORDED if recorded.text and own_template(recorded)]


@pytest.mark.parametrize("recorded", COMPARED, ids=lambda recorded: recorded.name)
def test_the_built_in_formats_are_response_templates(recorded: Recorded):
    template = own_template(recorded)
    assert template is not None
    prefix = "<think>\n" if "opened" in recorded.name else ""
    message = by_transformers(recorded.text, template, prefix)
    # transformers keeps the last of several texts outside of marks, be it the newline between two calls
    assert recorded.content.strip() == message.content or not message.content
    assert (message.reasoning, message.values) == (recorded.reasoning, recorded.calls)


def test_several_formats_are_compared():
    assert {recorded.tool_call_parser for recorded in COMPARED} >= {"hermes", "qwen3_coder", "none"}


def test_a_list_of_calls_and_keys_of_other_names():
    field = {
        "open": "[CALLS]",
        "content": "json",
        "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{input}"}},
        "transform_each": True,
    }
    template = {"start_anchor": "A:", "fields": {"content": {}, "tool_calls": field}}
    text = 'Yes.[CALLS][{"tool": "now", "input": {}}, {"tool": "get_weather", "input": {"days": 3}}]'
    expected = by_transformers(text, template, "")
    for cut in range(len(text)):
        got = read(read_template(template), text, {}, cuts=[cut])
        assert (got.content, got.values) == ("Yes.", expected.values)


@pytest.mark.parametrize(
    ("template", "fragment"),
    [
        (5, "not an object"),
        ({}, "fields"),
        ({"fields": {}}, "fields"),
        ({"fields": {"content": {}}, "version": 2}, "version"),
        ({"fields": {"content": {}}, "extra": 1}, "unknown keys: extra"),
        ({"fields": {"content": 5}}, "field content is not an object"),
        ({"fields": {"content": {"opens": "x"}}}, "unknown keys: opens"),
        ({"fields": {"content": {"open": ""}}}, "not empty"),
        ({"fields": {"content": {"open": ["x", 5]}}}, "not empty"),
        ({"fields": {"content": {"open": "x", "open_pattern": "x"}}}, "either"),
        ({"fields": {"content": {"close_pattern": "("}}}, "not a regular expression"),
        ({"fields": {"content": {"content": "yaml"}}}, "yaml"),
        ({"fields": {"tool_calls": {"open": "x", "content": "kv-lines"}}}, "kv-lines"),
        ({"fields": {"tool_calls": {"open": "x", "content": "json", "content_args": {"value_parser": {}}}}}, "value_p"),
        ({"fields": {"content": {}, "thinking": {}}}, "more than one"),
        ({"fields": {"content": {"open": "x"}, "tool_calls": {"close": "x"}}}, "opening"),
    ],
)
def test_templates_that_cannot_be_used(template: Any, fragment: str):
    with pytest.raises(FormatError, match=fragment):
        read_template(template)
    assert choose_format("auto", "auto", "", template).with_tools is None
    assert choose_format("auto", "auto", "<tool_call>", template).has_calls


def test_the_flags_go_before_the_models_own_template():
    own = TEMPLATES["gemma4"]
    text = f'<|channel>thought\nHm.<channel|>{WEATHER}<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'

    def names(tool_call_parser: str, reasoning_parser: str) -> tuple[str, list[str]]:
        format = choose_format(tool_call_parser, reasoning_parser, "", own).with_tools
        assert isinstance(format, Format)
        got = read(format, text, TOOLS)
        return got.reasoning, [name for name, _ in got.calls]

    assert names("auto", "auto") == ("Hm.", ["get_weather"])
    assert names("hermes", "auto") == ("Hm.", ["now"])
    assert names("none", "auto") == ("Hm.", [])
    assert names("auto", "none") == ("", ["get_weather"])
