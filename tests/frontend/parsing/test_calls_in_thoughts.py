"""A complete call within open reasoning ends it; a mark that is only mentioned is reasoning."""

import pytest

from frontend.parsing.model_format import choose_format
from frontend.parsing.regions import Format
from tests.frontend.parsing.reading import Reading, read
from tests.frontend.parsing.recorded import TOOLS

FORMATS: list[tuple[str, str, str, str, str, str]] = [
    ("hermes", "qwen3", "<think>", "</think>", '<tool_call>\n{"name": "now", "arguments": ', "}\n</tool_call>"),
    (
        *("qwen3_coder", "qwen3", "<think>", "</think>"),
        *("<tool_call>\n<function=now>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
    ),
    (
        *("glm45", "deepseek_r1", "<think>", "</think>"),
        *("<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"),
    ),
    (
        *("minimax_m2", "deepseek_r1", "<think>", "</think>"),
        *('<minimax:tool_call>\n<invoke name="now">\n<parameter name="a">', "</parameter>\n</invoke>"),
    ),
    (
        *("deepseek_v3", "deepseek_r1", "<think>", "</think>"),
        *("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    (
        *("kimi_k2", "deepseek_r1", "<think>", "</think>"),
        *("<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    ("mistral", "mistral", "[THINK]", "[/THINK]", "[TOOL_CALLS]now[ARGS]", ""),
    ("gemma4", "gemma4", "<|channel>thought", "<channel|>", '<|tool_call>call:now{a:<|"|>', '<|"|>}<tool_call|>'),
    ("granite", "granite", "<think>", "</think>", '<|tool_call|>[{"name": "now", "arguments": ', "}]"),
    (
        *("openai", "openai_gptoss", "<|channel|>analysis<|message|>", "<|end|>"),
        *("<|channel|>commentary to=functions.now<|message|>", "<|call|>"),
    ),
    ("olmo3", "deepseek_r1", "<think>", "</think>", "<function_calls>now(a=", ")</function_calls>"),
]
by_format = pytest.mark.parametrize(("calls", "reasoning", "open", "close", "begin", "end"), FORMATS)


def argument_of(begin: str, text: str) -> str:
    """Returns `{"a": text}` as the format writes it."""
    if begin.endswith(("a=",)):
        return f"'{text}'"
    return text if begin.endswith((">\n", "<arg_value>", 'name="a">', '<|"|>')) else f'{{"a": "{text}"}}'


def all_ways(calls: str, reasoning: str, text: str, prompt_end: str = "") -> Reading:
    """Reads `text` whole and streamed, cut at every place; all must be equal."""
    format = choose_format(calls, reasoning, "").with_tools
    assert isinstance(format, Format)
    whole = read(format, text, TOOLS, prompt_end)
    for is_streamed in (True, False):
        for cuts in (range(len(text)), *([cut] for cut in range(0, len(text), 3))):
            assert read(format, text, TOOLS, prompt_end, cuts, is_streamed=is_streamed) == whole
    return whole


@by_format
@pytest.mark.parametrize("is_in_prompt", [False, True])
def test_a_call_in_an_open_thought(
    calls: str, reasoning: str, open: str, close: str, begin: str, end: str, is_in_prompt: bool
):
    call = begin + argument_of(begin, "b") + end
    lead = "" if is_in_prompt else open
    got = all_ways(calls, reasoning, f"{lead}I call it.\n{call}", open if is_in_prompt else "")
    assert (got.reasoning.strip(), got.content, got.values) == ("I call it.", "", (("now", {"a": "b"}),))


@by_format
def test_what_follows_the_call_is_content(calls: str, reasoning: str, open: str, close: str, begin: str, end: str):
    call = begin + argument_of(begin, "b") + end
    got = all_ways(calls, reasoning, f"{open}I call it.{call}{call}{close}")
    assert (got.reasoning.strip(), got.values) == ("I call it.", (("now", {"a": "b"}),) * 2)
    assert got.content.strip() == ""
    if calls != "openai":  # a text of gpt-oss has a header
        got = all_ways(calls, reasoning, f"{open}I call it.{call}{close}One moment.")
        assert (got.content.strip(), len(got.calls)) == ("One moment.", 1)


@by_format
def test_a_mark_that_is_mentioned(calls: str, reasoning: str, open: str, close: str, begin: str, end: str):
    header = "<|start|>assistant<|channel|>final<|message|>" if calls == "openai" else ""
    call = begin + argument_of(begin, "b") + end
    marks = [begin, begin.strip("[{"), begin[: len(begin) // 2]]
    for mark in marks:
        thought = f"Calls begin with {mark} and so on, I think."
        got = all_ways(calls, reasoning, f"{open}{thought}{close}{header}Yes.")
        assert (" ".join(got.reasoning.split()), got.content.strip()) == (" ".join(thought.split()), "Yes.")
        assert got.calls == []
        if calls != "openai":
            got = all_ways(calls, reasoning, f"{open}{thought}{close}{call}")
            assert (" ".join(got.reasoning.split()), got.content.strip()) == (" ".join(thought.split()), "")
            assert got.values == (("now", {"a": "b"}),)


@by_format
def test_a_call_after_a_mark_that_is_mentioned(calls: str, reasoning: str, open: str, close: str, begin: str, end: str):
    call = begin + argument_of(begin, "b") + end
    got = all_ways(calls, reasoning, f"{open}I write {begin} and so on. Now:\n{call}")
    assert (got.values, got.content) == ((("now", {"a": "b"}),), "")
    assert got.reasoning.startswith("I write ")
    assert got.reasoning.strip().endswith("Now:")


@by_format
def test_a_call_of_no_tool_is_reasoning(calls: str, reasoning: str, open: str, close: str, begin: str, end: str):
    call = (begin + argument_of(begin, "b") + end).replace("now", "other")
    got = all_ways(calls, reasoning, f"{open}As in {call}, for example.")
    assert got.calls == []
    assert "other" in got.reasoning


@by_format
def test_an_incomplete_call_in_a_thought_is_reasoning(
    calls: str, reasoning: str, open: str, close: str, begin: str, end: str
):
    text = open + "I call it." + (begin + argument_of(begin, "b"))[:-1]
    format = choose_format(calls, reasoning, "").with_tools
    assert format is not None
    for is_cut in (False, True):
        for is_streamed in (False, True):
            got = read(format, text, TOOLS, cuts=range(len(text)), is_streamed=is_streamed, is_cut=is_cut)
            if (end, is_cut, calls) == ("\n</parameter>\n</function>\n</tool_call>", False, "qwen3_coder"):
                continue
            assert (got.calls, got.content, got.broken) == ([], "", [])
            assert got.reasoning.startswith("I call it.")


def test_a_closing_mark_in_a_string_of_a_call_is_part_of_it():
    call = '<tool_call>{"name": "now", "arguments": {"a": "</think> <tool_call>"}}</tool_call>'
    got = all_ways("hermes", "qwen3", f"<think>So:{call}")
    assert (got.reasoning, got.values) == ("So:", (("now", {"a": "</think> <tool_call>"}),))


def test_a_string_that_a_draft_does_not_close():
    text = 'I could write <tool_call>{"name": "now", "arguments": {"a": "b</think>It is "so".'
    got = all_ways("hermes", "qwen3", text, "<think>\n")
    assert (got.content, got.calls) == ('It is "so".', [])
    assert got.reasoning == text.partition("</think>")[0]


def test_a_closed_thought_is_not_closed_again():
    got = all_ways("hermes", "qwen3", "<think>Hm.</think>Models write </think> at the end.")
    assert (got.reasoning, got.content) == ("Hm.", "Models write </think> at the end.")
