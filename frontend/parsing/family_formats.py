"""The formats of single model families, by their names in vLLM. They are found before those that families share."""

from collections.abc import Mapping
from typing import Any

import regex

from frontend.parsing.marked_format import BARE_CALL, CALL, END_MARKS, NAMED_CALL, CallSyntax, MarkedFormat
from frontend.parsing.whole_calls import VALUE
from messages.ring.requests import Thought

NAME = r"(?P<name>[\w.-]{1,128})"
LINES = r"\s{0,8}"
"""Models break lines between marks differently."""

Groups = tuple[tuple[str, ...], ...]


def calls(
    *fields: dict[str, Any],
    found_by: Groups,
    forced: CallSyntax,
    rest: str = END_MARKS,
    forced_by: Mapping[str, CallSyntax] = {},
) -> MarkedFormat:
    """Returns a format whose marks may be special tokens. `rest`: the marks within content, which are dropped."""
    close = {"close_pattern": rest}
    return MarkedFormat(fields, found_by, True, close, forced=forced, forced_by=forced_by)


def json_field(open_pattern: str, close_pattern: str, transform: Any = CALL) -> dict[str, Any]:
    """Returns the field for calls in JSON; with `NAMED_CALL`, for the arguments of one."""
    close = {"close_pattern": close_pattern} if close_pattern else {}
    return {"open_pattern": open_pattern, **close, "content": "json", "transform": transform}


def _listed(begin: str, end: str, rest: str = END_MARKS, *others: Any, **keys: str | None) -> MarkedFormat:
    """Returns a format with a list of calls between two marks, and `others`. `keys` are those of `CallSyntax`."""
    forced = CallSyntax(begin, end, is_list=True, **keys)  # pyright: ignore[reportArgumentType]
    function = {"name": f"{{{forced.name_key}}}", "arguments": f"{{{forced.arguments_key}}}"}
    field = json_field(
        rf"{regex.escape(begin)}{LINES}(?=[\[{{])", regex.escape(end), {"type": "function", "function": function}
    )
    field["keyed_by_name"] = forced.name_key is None
    return calls(field, *others, found_by=((begin,),), forced=forced, rest=rest)


def _tagged(sample: str, *found_by: str, value: str = VALUE) -> MarkedFormat:
    """Returns the format that writes each argument between tags.

    The parts of `sample`, separated by "§", are what begins a group of calls, what begins a call, an argument, and what
    ends a call and a group. `{any}` is any word.
    """
    group, begin, argument, end, group_end = sample.split("§")
    before, _, behind = argument.partition("{value}")
    field = {
        "open_pattern": (f"(?:{_pattern(group)})?" if group else "") + _pattern(begin.rstrip()),
        "close_pattern": _pattern(end),
        "content": "xml-inline",
        "content_args": {"tag_pattern": _pattern(before, r"\n?") + value + _pattern(behind, r"\n?")},
        "transform": NAMED_CALL,
    }
    tag = None if "{any}" in argument else (before, behind)
    separator = None if group else "\n"
    forced = CallSyntax(group + begin, end + group_end, separator=separator, is_json=False, tag=tag)
    rest = f"{_pattern(group_end)}|{END_MARKS}" if group_end else END_MARKS
    return calls(field, found_by=(found_by,), forced=forced, rest=rest)


def _pattern(text: str, edge: str = LINES) -> str:
    """Returns a pattern for `text`; `edge` matches a line end at its beginning or end."""
    inner = LINES.join(regex.escape(line, literal_spaces=True) for line in text.strip("\n").split("\n"))
    for name, pattern in (("name", NAME), ("key", r"(?P<key>[^<>\"\n]{1,256})"), ("any", r"\w{1,16}")):
        inner = inner.replace(rf"\{{{name}\}}", pattern)
    return (edge if text.startswith("\n") else "") + inner + (edge if text.endswith("\n") else "")


def _dictionary(begin: str, quote: str, end: str, rest: str = END_MARKS) -> MarkedFormat:
    """Returns a format whose arguments are JSON, but keys have no quotes, and strings are between `quote`."""
    field = {
        **json_field(rf"{regex.escape(begin)}call:{NAME}\s{{0,4}}(?=\{{)", regex.escape(end), NAMED_CALL),
        "content_args": {"unquoted_keys": True, "string_delims": [[quote, quote]]},
    }
    forced = CallSyntax(f"{begin}call:{{name}}", end, separator="", is_json=False)
    return calls(field, found_by=((begin, "call:"),), forced=forced, rest=rest)


def _pythonic(begin: str, end: str, *found_by: tuple[str, ...]) -> MarkedFormat:
    """Returns a format with calls in Python's syntax, a list of them or one a line."""
    field = {"open": begin.rstrip("["), "close": end.lstrip("]"), "content": "pythonic"}
    forced = CallSyntax(f"{begin}{{name}}(", end.lstrip("]"), is_json=False)
    return calls(field, found_by=((field["open"],), *found_by), forced=forced)


FUNCTOOLS = {**json_field(r"\s{0,8}functools\s{0,4}(?=\[\s{0,8}\{)", ""), "starts_content": True}
GEMMA_REST = r"<channel\|>|(?:<turn\|>|<\|tool_response>|<eos>)\s{0,8}\Z"
GRANITE_REST = r"(?<=</think>\s{0,8})<response>|</response>\s{0,8}\Z"
APRIEL_REST = r"\[END FINAL RESPONSE\]\s{0,8}\Z"
COHERE_REST = r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>"
DEEPSEEK_CALL, DEEPSEEK_END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI_CALL = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"

FAMILY_TOOL_FORMATS: dict[str, MarkedFormat] = {
    "gemma4": _dictionary("<|tool_call>", '<|"|>', "<tool_call|>", GEMMA_REST),
    "functiongemma": _dictionary("<start_function_call>", "<escape>", "<end_function_call>"),
    "glm45": _tagged(
        "§<tool_call>{name}\n§<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n§</tool_call>§", "<arg_key>"
    ),
    "seed_oss": _tagged(
        "§<seed:tool_call>\n<function={name}>\n§<parameter={key}>{value}</parameter>\n§</function>\n</seed:tool_call>§",
        *("seed:tool_call", "<function="),
    ),
    "minimax_m2": _tagged(
        '<minimax:tool_call>\n§<invoke name="{name}">\n§<parameter name="{key}">{value}</parameter>\n§</invoke>§\n'
        "</minimax:tool_call>",
        *("minimax:tool_call", "<invoke name="),
    ),
    "deepseek_v32": _tagged(
        '<｜DSML｜{any}>\n§<｜DSML｜invoke name="{name}">\n§<｜DSML｜parameter name="{key}" string="{any}">{value}'
        "</｜DSML｜parameter>\n§</｜DSML｜invoke>§\n</｜DSML｜{any}>",
        *("｜DSML｜", "invoke name="),
    ),
    "minicpm5": _tagged(
        '§<function name="{name}">§<param name="{key}">{value}</param>§</function>§',
        *('<function name="', '<param name="'),
        value=rf"(?:<!\[CDATA\[)?{VALUE}(?:\]\]>)?",
    ),
    "deepseek_v3": calls(
        json_field(
            r"(?:<｜tool▁calls▁begin｜>\s{0,4})?<｜tool▁call▁begin｜>"
            rf"(?:function<｜tool▁sep｜>{NAME}\s{{0,4}}```json|(?!function<){NAME}<｜tool▁sep｜>)\s{{0,4}}",
            r"(?:```\s{0,4})?<｜tool▁call▁end｜>",
            NAMED_CALL,
        ),
        found_by=(("<｜tool▁call▁begin｜>", " tools"),),
        forced=CallSyntax(DEEPSEEK_CALL + "{name}<｜tool▁sep｜>", DEEPSEEK_END),
        forced_by={
            "```json": CallSyntax(DEEPSEEK_CALL + "function<｜tool▁sep｜>{name}\n```json\n", "\n```" + DEEPSEEK_END)
        },
        rest=r"<｜tool▁calls▁end｜>|<｜end▁of▁sentence｜>\s{0,8}\Z",
    ),
    "kimi_k2": calls(
        json_field(
            r"(?:<\|tool_calls_section_begin\|>\s{0,4})?<\|tool_call_begin\|>\s{0,4}(?:functions\.)?"
            r"(?P<name>[\w.-]{1,128}?)(?::\d{1,8})?\s{0,4}<\|tool_call_argument_begin\|>",
            r"<\|tool_call_end\|>",
            NAMED_CALL,
        ),
        found_by=(("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),),
        forced=CallSyntax(KIMI_CALL, "<|tool_call_end|><|tool_calls_section_end|>"),
        rest=rf"<\|tool_calls_section_end\|>|{END_MARKS}",
    )._replace(id_form="numbered"),
    "cohere_command3": _listed(
        *("<|START_ACTION|>", "<|END_ACTION|>", COHERE_REST), name_key="tool_name", arguments_key="parameters"
    ),
    "apertus": _listed("<|tools_prefix|>", "<|tools_suffix|>", name_key=None),
    "minimax": _listed("<tool_calls>", "</tool_calls>", f"{APRIEL_REST}|{END_MARKS}"),
    "nemotron_json": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "granite": _listed(
        *("<|tool_call|>", "", f"{GRANITE_REST}|{END_MARKS}"),
        *(json_field(rf"<tool_call>{LINES}(?=[\[{{])", "</tool_call>"), BARE_CALL),
    ),
    "phi4_mini_json": _listed("<|tool_call|>", "<|/tool_call|>", END_MARKS, FUNCTOOLS, BARE_CALL)._replace(
        found_by=(("functools[",), ("<|tool|>", "<|/tool|>")),
        forced_by={"functools[": CallSyntax("functools", is_list=True)},
    ),
    "functionary": calls(
        json_field(rf"<function={NAME}>{LINES}(?=\{{)", "</function>", NAMED_CALL),
        found_by=(("<function=", "<|eom_id|>"),),
        forced=CallSyntax("<function={name}>", "</function>", separator=""),
    ),
    "olmo3": _pythonic("<function_calls>", "</function_calls>"),
    "lfm2": _pythonic(*("<|tool_call_start|>[", "]<|tool_call_end|>"), ("<|tool_list_start|>",), ("List of tools: [",)),
}


def _reasoning(begin: str, end: str, rest: str = "", empty: str = "") -> MarkedFormat:
    """Returns a format of reasoning between two texts. `empty`: an empty thought, if it is not just both."""
    thought = Thought(begin, end, empty=empty or begin + end)
    close = {"close_pattern": rest} if rest else {}
    return MarkedFormat(({"open": begin, "close": end},), ((begin,),), True, close, thought=thought)


def _first(begin: str, *ends: str) -> dict[str, Any]:
    """Returns the field for reasoning whose beginning is a mark only at the start of an answer."""
    return {"open_pattern": LINES + begin, "close": ends, "starts_content": True}


FAMILY_REASONING_FORMATS: dict[str, MarkedFormat] = {
    "gemma4": _reasoning("<|channel>thought", "<channel|>", GEMMA_REST, "<|channel>thought\n<channel|>"),
    "cohere_command3": _reasoning("<|START_THINKING|>", "<|END_THINKING|>", COHERE_REST),
    "seed_oss": _reasoning("<seed:think>", "</seed:think>"),
    "apertus": _reasoning("<|inner_prefix|>", "<|inner_suffix|>"),
    "apriel": MarkedFormat(
        (_first("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
        found_by=(("[BEGIN FINAL RESPONSE]",),),
        content_close={"close_pattern": APRIEL_REST},
        thought=Thought("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    "granite": MarkedFormat(
        (
            _first("<think>", "</think>"),
            _first("Here(?: i|')s my thought process:", "Here is my response:", "Here's my response:"),
        ),
        found_by=(("<think></think>", "<response></response>"), ("Here is my thought process:",)),
        content_close={"close_pattern": GRANITE_REST},
        thought=Thought("<think>", "</think>"),
    ),
}
