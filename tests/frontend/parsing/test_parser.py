"""Answers in every format: a stream adds up to the whole reply however it is split, and no text is lost."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.parsing.deltas import Content, Deltas
from frontend.parsing.formats import TOOL_FORMATS
from frontend.parsing.marks import MAX_SEARCH_S
from frontend.parsing.model_format import choose_format
from frontend.parsing.parser import ResponseParser
from frontend.parsing.regions import Format, read_template
from tests.frontend.parsing.reading import add_up, read
from tests.frontend.parsing.recorded import MALFORMED, RECORDED, TOOLS, Recorded
from tests.frontend.parsing.recorded_families import BROKEN, FAMILIES

by_name = pytest.mark.parametrize("recorded", [*RECORDED, *FAMILIES], ids=lambda recorded: recorded.name)


def format_of(tool_call_parser: str, reasoning_parser: str = "none") -> Format:
    format = choose_format(tool_call_parser, reasoning_parser, "").with_tools
    assert format is not None
    return format


@by_name
def test_what_is_in_an_answer(recorded: Recorded):
    format = format_of(recorded.tool_call_parser, recorded.reasoning_parser)
    reading = read(format, recorded.text, TOOLS, recorded.prompt_end)
    assert (reading.content, reasoning := reading.reasoning) == (recorded.content, reasoning)
    assert reasoning == recorded.reasoning
    assert reading.values == recorded.calls


@by_name
def test_every_place_to_cut_gives_the_same(recorded: Recorded):
    format = format_of(recorded.tool_call_parser, recorded.reasoning_parser)
    whole = read(format, recorded.text, TOOLS, recorded.prompt_end)
    assert whole.broken == []
    for cut in range(len(recorded.text) + 1):
        assert read(format, recorded.text, TOOLS, recorded.prompt_end, [cut]) == whole
    for is_streamed in (False, True):
        cuts = range(len(recorded.text))
        assert read(format, recorded.text, TOOLS, recorded.prompt_end, cuts, is_streamed=is_streamed) == whole


PIECES = st.one_of(
    st.sampled_from(
        [
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "</s>"),
            *("<|channel|>", "<|message|>", "commentary to=functions.now", "analysis", "final", "<|end|>", "<|call|>"),
            *(
                '{"name": "now", "arguments": {',
                "```json",
                "```",
                "</tools>",
                "}}",
                '"',
                "\\",
                ": ",
                ", ",
                "; ",
                "{",
                "}",
                "[",
                "]",
                "now(",
                ")",
                "x=",
            ),
            *(
                "<function=now>",
                "</function>",
                "<parameter=a>",
                "</parameter>",
                "<|im_end|>",
                "\n",
                " ",
                "<|start|>assistant",
            ),
            *("<|tool_call>call:now{", "a:", '<|"|>', "<tool_call|>", "<|channel>thought", "<channel|>", "now\n"),
            *("<arg_key>a</arg_key>", "<arg_value>", "</arg_value>", "<function_calls>", "</function_calls>"),
            *("<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>", "now<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "now:0"),
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_call|>", "functools"),
            *("<|START_ACTION|>", "<|END_ACTION|>", "<|tools_prefix|>", '{"now": {', "<|tools_suffix|>", "</response>"),
            *('<invoke name="now">', '<parameter name="a">', "</invoke>", "<minimax:tool_call>", "Here is my "),
        ]
    ),
    st.text(max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=14),
    parser=st.sampled_from(sorted(TOOL_FORMATS)),
    reasoning=st.sampled_from(["none", "qwen3", "openai_gptoss", "gemma4", "granite"]),
    cuts=st.lists(st.integers(0, 80), max_size=8),
    is_streamed=st.booleans(),
    is_cut=st.booleans(),
)
def test_any_text_cut_anywhere(
    pieces: list[str], parser: str, reasoning: str, cuts: list[int], is_streamed: bool, is_cut: bool
):
    format, text = format_of(parser, reasoning), "".join(pieces)
    whole = read(format, text, TOOLS, is_streamed=is_streamed, is_cut=is_cut)
    assert read(format, text, TOOLS, cuts=cuts, is_streamed=is_streamed, is_cut=is_cut) == whole
    if not is_streamed:
        assert whole.broken == ([len(whole.calls) - 1] if is_cut and whole.broken else [])
        complete = whole.calls[: len(whole.calls) - len(whole.broken)]
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in complete)


@pytest.mark.parametrize(("parser", "text"), [*MALFORMED, *BROKEN])
def test_what_is_no_call_is_content(parser: str, text: str):
    for cuts in ([], range(len(text)), [len(text) // 2]):
        reading = read(format_of(parser), text, TOOLS, cuts=cuts)
        assert (re.sub(r"\s", "", reading.content), reading.calls) == (re.sub(r"\s", "", text), [])


CUT = [
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "b', '{"a": "b'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": {}', '{"a": {}'),
    ("hermes", '```json\n{"name": "now", "arguments": {"a": 1', '{"a": 1'),
    ("llama3_json", '{"name": "now", "parameters": {"a": [', '{"a": ['),
    ("mistral", '[TOOL_CALLS]now[ARGS]{"a": 1', '{"a": 1'),
    ("openai", '<|channel|>commentary to=functions.now<|message|>{"a', '{"a'),
    ("deepseek_v3", '<｜tool▁call▁begin｜>now<｜tool▁sep｜>{"a": ', '{"a": '),
    ("mistral", "[TOOL_CALLS]now[ARGS]", None),
    ("openai", "<|channel|>commentary to=functions.now<|message|>", None),
    ("qwen3_coder", "<tool_call>\n<function=now>", None),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a", None),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>", '{"a": "'),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n  1\n</para", '{"a": "  1'),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>", '{"a": "1"'),
    ("qwen3_coder", "<function=now>\n<parameter=a>\n1\n</parameter>\n</func", '{"a": "1"'),
    ("glm45", "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>b\n<c", '{"a": "b\\n<c'),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="now">\n<parameter name="a">b"', '{"a": "b\\"'),
    ("gemma4", '<|tool_call>call:now{a:1,b:<|"|>c"d<|"', '{"a":1,"b":"c\\"d'),
    ("pythonic", "[now(a=", None),
    ("pythonic", "[now(a=1", '{"a": 1'),
    ("pythonic", "[now(a='b', c=[1, 2], d=\"e, f=", '{"a": "b", "c": [1, 2], "d": "e, f='),
    ("pythonic", "[now(a=[1, 'b", '{"a": [1, "b'),
    ("pythonic", "[now(a=1, b=", '{"a": 1'),
    ("lfm2", "<|tool_call_start|>[now(a=1), now(a='b', c=", '{"a": "b"'),
]
"""Calls that the limit of tokens or a stop string cuts, with the arguments that are known by then."""


@pytest.mark.parametrize(("parser", "text", "shown"), CUT)
def test_a_call_that_is_cut_is_a_broken_call_once_its_arguments_have_begun(parser: str, text: str, shown: str | None):
    for cuts in ([], range(len(text))):
        for is_streamed in (False, True):
            reading = read(format_of(parser), text, TOOLS, cuts=cuts, is_streamed=is_streamed, is_cut=True)
            if shown is None:
                assert (re.sub(r"\s", "", reading.content), reading.calls) == (re.sub(r"\s", "", text), [])
            else:
                assert (reading.content, reading.calls[-1]) == ("", ("now", shown))
                assert reading.broken == [len(reading.calls) - 1]


def test_a_call_whose_arguments_are_there_is_whole_wherever_the_answer_is_cut():
    text = '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'
    for end in range(text.index("}}") + 1, len(text) - len("</tool_call>") + 2):
        for is_streamed in (False, True):
            reading = read(format_of("hermes"), text[:end], TOOLS, is_streamed=is_streamed, is_cut=True)
            assert (reading.calls, reading.broken) == ([("now", '{"a": 1}')], [])


@pytest.mark.parametrize("arguments", ['{"city": oops}', '{"a": NaN}', '{"a": "\\d"}', '{"a": 1,}'])
def test_a_call_whose_arguments_are_no_json_is_content_and_in_a_stream_reported_to_be_broken(arguments: str):
    text = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
    reading = read(format_of("hermes"), text, TOOLS, is_streamed=False)
    assert (reading.content, reading.calls) == (text, [])
    streamed = read(format_of("hermes"), text, TOOLS)
    assert ([name for name, _ in streamed.calls], streamed.broken) == (["now"], [0])
    deltas = Deltas(is_streamed=False, custom=["now"])
    parser = ResponseParser(format_of("hermes"), TOOLS, deltas=deltas)
    custom = add_up([*parser.feed(text), *parser.finish()])
    assert custom.calls == [("now", arguments)], "the text of a custom tool need not be JSON"


def test_arguments_come_as_they_are_written():
    parser = ResponseParser(format_of("hermes"), TOOLS)
    pieces = ['<tool_call>{"name": "now", "argum', 'ents": {"a": [1', ", 2", "]}", "}</tool", "_call>"]
    seen = [parser.feed(piece) for piece in pieces]
    assert [list(map(tuple, deltas)) for deltas in seen] == [
        [],
        [(0, "now"), (0, '{"a": [1')],
        [(0, ", 2")],
        [(0, "]}")],
        [],
        [],
    ]


def test_text_around_calls_is_kept():
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    reading = read(format_of("hermes"), f"One. {call}\nTwo.{call} {call}Three.", TOOLS)
    assert (reading.content, len(reading.calls)) == ("One.\nTwo.\nThree.", 3)


def test_names_that_no_tool_has_are_calls_where_a_mark_reports_it():
    text = '<tool_call>{"name": "other", "arguments": {"a": 1}}</tool_call>'
    assert read(format_of("hermes"), text, {}).values == (("other", {"a": 1}),)


@pytest.mark.parametrize(("arguments", "expected"), [('"{\\"a\\": 1}"', '{"a": 1}'), ('""', "{}"), ("null", "{}")])
def test_arguments_in_other_forms(arguments: str, expected: str):
    text = f'<tool_call>{{"name": "now", "arguments": {arguments}, "id": "x"}}</tool_call>'
    assert read(format_of("hermes"), text, TOOLS).calls == [("now", expected)]
    assert read(format_of("hermes"), '<tool_call>{"name": "now"}</tool_call>', TOOLS).calls == [("now", "{}")]


def test_half_characters_and_odd_escapes_in_arguments():
    for parser, text, expected in (
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "\\ud800"}}</tool_call>', '{"a": "\\ud800"}'),
        ("pythonic", "[now(a='\\ud800', b='\\d')]", '{"a": "\\ud800", "b": "\\\\d"}'),
    ):
        assert read(format_of(parser), text, TOOLS).calls == [("now", expected)]


def test_an_answer_that_continues_a_message():
    parser = ResponseParser(format_of("none", "qwen3"), {}, begun="<think>\nIt is")
    assert [tuple(delta) for delta in [*parser.feed(" so.</think>Yes"), *parser.finish()]] == [(" so.",), ("Yes",)]
    parser = ResponseParser(format_of("none", "qwen3"), {}, begun="Once upon")
    assert parser.feed(" a time") == [Content(" a time")]


def template_of(**field: Any) -> Format:
    """A response template whose reasoning has the marks in `field`."""
    return read_template({"start_anchor": "A:", "fields": {"content": {}, "reasoning_content": field}})


def test_a_pattern_that_takes_for_ever_is_provided_up():
    format = template_of(open_pattern="(?:(?:a|b)+)+[cd]", close="X")
    text = "ab" * 4000
    began_s = time.monotonic()
    assert read(format, text, TOOLS, cuts=[len(text) // 2]).content == text
    assert time.monotonic() - began_s >= MAX_SEARCH_S, "the pattern is not slow enough to show anything"


def test_marks_of_no_length_end():
    assert read(template_of(open_pattern="(?=x)", close="X"), "ax y", TOOLS).reasoning == "x y"
    empty = template_of(open_pattern="(?=x)", close_pattern="(?=x)")
    assert read(empty, "ax y", TOOLS).content.replace("\n", "") == "ax y"


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "mistral"])
@pytest.mark.parametrize(
    "text", ["A <s>price</s> and <s>another</s>", '{"ends": "<|im_end|>"}', "Write <|im_end|> last."]
)
def test_a_mark_that_ends_turns_is_text_within_an_answer(parser: str, text: str):
    format = format_of(parser, "qwen3")
    for end in ("", "<|im_end|>", "<|endoftext|>\n"):
        for cuts in ([], list(range(80))):
            assert read(format, text + end, TOOLS, cuts=cuts).content == text


@pytest.mark.parametrize(
    ("reasoning", "mark"), [("qwen3", "<think>"), ("deepseek_r1", "<think>"), ("mistral", "[THINK]")]
)
def test_a_mark_of_reasoning_is_text_within_an_answer(reasoning: str, mark: str):
    close = mark.replace("<", "</").replace("[", "[/")
    format = format_of("hermes", reasoning)
    for text in (f'{{"mark": "{mark}"}}', f"Models write {mark} and {close} around it."):
        for lead, thought in (("", ""), (f"\n{mark}Hm.{close}\n\n", "Hm.")):
            for cuts in ([], list(range(80))):
                got = read(format, lead + text, TOOLS, cuts=cuts)
                assert (got.reasoning, got.content) == (thought, text)


@pytest.mark.parametrize(
    ("parser", "reasoning", "text"),
    [
        ("gemma4", "gemma4", "Gemma ends a turn with <turn|>, not with <eos>, as others."),
        ("granite", "granite", "<answer><response>1</response></answer>"),
        ("minimax", "apriel", "It is [END FINAL RESPONSE], I think. Here are my reasoning steps: none."),
        ("deepseek_v3", "deepseek_r1", "<｜end▁of▁sentence｜> is a token."),
    ],
)
def test_marks_of_a_family_are_text_within_an_answer(parser: str, reasoning: str, text: str):
    for cuts in ([], range(len(text))):
        got = read(format_of(parser, reasoning), text, TOOLS, cuts=cuts)
        assert (got.content, got.reasoning, got.calls) == (text, "", [])
