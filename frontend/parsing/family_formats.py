"""The formats of single model families, by their names in vLLM. They are found before those that families share."""

from collections.abc import Mapping
from typing import Any

import regex

from frontend.parsing.marked_format import BARE_CALL, CALL, END_MARKS, NAMED_CALL, CallSyntax, MarkedFormat
from messages.ring.requests import Thought

NAME = r"(?P<name>[\w.-]{1,128})"
VALUE = "(?P<value>.*?)"
LINES = r"\s{0,8}"
"""Models break lines between marks differently."""

Groups = tuple[tuple[str, ...], ...]


def _calls(
    *fields: dict[str, Any],
    found_by: Groups,
    forced: CallSyntax,
    rest: str = END_MARKS,
    forced_by: Mapping[str, CallSyntax] = {},
) -> MarkedFormat:
    """Returns a format whose marks may be special tokens. `rest`: the marks within content, which are dropped."""
    close = {"close_pattern": rest}
    return MarkedFormat(fields, found_by, True, close, forced=forced, forced_by=forced_by)


def _json(open_pattern: str, close_pattern: str, transform: Any = CALL) -> dict[str, Any]:
    """Returns the field for calls in JSON; with `NAMED_CALL`, for the arguments of one."""
    close = {"close_pattern": close_pattern} if close_pattern else {}
    return {"open_pattern": open_pattern, **close, "content": "json", "transform": transform}


def _listed(begin: str, end: str, rest: str = END_MARKS, *others: Any, **keys: str | None) -> MarkedFormat:
    """Returns a format with a list of calls between two marks, and `others`. `keys` are those of `CallSyntax`."""
    forced = CallSyntax(begin, end, is_list=True, **keys)  # pyright: ignore[reportArgumentType]
    function = {"name": f"{{{forced.name_key}}}", "arguments": f"{{{forced.arguments_key}}}"}
    field = _json(
        rf"{regex.escape(begin)}{LINES}(?=[\[{{])", regex.escape(end), {"type": "function", "function": function}
    )
    if forced.name_key is None:
        field["keyed_by_name"] = True
    return _calls(field, *others, found_by=((begin,),), forced=forced, rest=rest)


def _tagged(
    begin: str,
    tag: tuple[str, str],
    end: str,
    *found_by: str,
    around: tuple[str, str] = ("", ""),
    value: str = VALUE,
) -> MarkedFormat:
    """Returns a format that writes each argument between the two texts of `tag`; `around` stands around all calls.

    `{name}` is the name of the tool or of the parameter, and `{any}` any word.
    """
    tag_begin, tag_end = (_pattern(text, r"(?P<key>[^<>\"\n]{1,256})", r"\n?") for text in tag)
    field = {
        "open_pattern": (f"(?:{_pattern(around[0])})?" if around[0] else "") + _pattern(begin.rstrip()),
        "close_pattern": _pattern(end),
        "content": "xml-inline",
        "content_args": {"tag_pattern": tag_begin + value + tag_end},
        "transform": NAMED_CALL,
    }
    first, last = (text.replace("{any}", "tool_calls") for text in around)
    forced = CallSyntax(first + begin, end + last, is_json=False, tag=None if "{any}" in tag[0] else tag)
    rest = rf"{_pattern(around[1])}|{END_MARKS}" if around[1] else END_MARKS
    return _calls(field, found_by=(found_by,), forced=forced, rest=rest)


def _pattern(text: str, name: str = NAME, edge: str = LINES) -> str:
    """Returns a pattern for `text`; `edge` matches a line end at its beginning or end."""
    inner = LINES.join(regex.escape(line, literal_spaces=True) for line in text.strip("\n").split("\n"))
    inner = inner.replace(r"\{name\}", name).replace(r"\{any\}", r"\w{1,16}")
    return (edge if text.startswith("\n") else "") + inner + (edge if text.endswith("\n") else "")


def _dictionary(begin: str, quote: str, end: str, rest: str = END_MARKS) -> MarkedFormat:
    """Returns a format whose arguments are JSON, but keys have no quotes, and strings are between `quote`."""
    field = {
        **_json(rf"{regex.escape(begin)}call:{NAME}\s{{0,4}}(?=\{{)", regex.escape(end), NAMED_CALL),
        "content_args": {"unquoted_keys": True, "string_delims": [[quote, quote]]},
    }
    forced = CallSyntax(f"{begin}call:{{name}}", end, is_json=False)
    return _calls(field, found_by=((begin, "call:"),), forced=forced, rest=rest)


GEMMA_REST = r"<channel\|>|<turn\|>|<\|tool_response>|<eos>"
COHERE_REST = r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>"
DEEPSEEK_CALL, DEEPSEEK_END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI_CALL = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"

FAMILY_TOOL_FORMATS: dict[str, MarkedFormat] = {
    "gemma4": _dictionary("<|tool_call>", '<|"|>', "<tool_call|>", GEMMA_REST),
    "functiongemma": _dictionary("<start_function_call>", "<escape>", "<end_function_call>"),
    "glm45": _tagged(
        "<tool_call>{name}\n",
        ("<arg_key>{name}</arg_key>\n<arg_value>", "</arg_value>\n"),
        "</tool_call>",
        *("<tool_call>", "<arg_key>"),
    ),
    "seed_oss": _tagged(
        "<seed:tool_call>\n<function={name}>\n",
        ("<parameter={name}>", "</parameter>\n"),
        "</function>\n</seed:tool_call>",
        *("seed:tool_call", "<function="),
    ),
    "minimax_m2": _tagged(
        '<invoke name="{name}">\n',
        ('<parameter name="{name}">', "</parameter>\n"),
        "</invoke>",
        *("minimax:tool_call", "<invoke name="),
        around=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    ),
    "deepseek_v32": _tagged(
        '<｜DSML｜invoke name="{name}">\n',
        ('<｜DSML｜parameter name="{name}" string="{any}">', "</｜DSML｜parameter>\n"),
        "</｜DSML｜invoke>",
        *("｜DSML｜", "invoke name="),
        around=("<｜DSML｜{any}>\n", "\n</｜DSML｜{any}>"),
    ),
    "minicpm5": _tagged(
        '<function name="{name}">',
        ('<param name="{name}">', "</param>"),
        "</function>",
        *('<function name="', '<param name="'),
        value=rf"(?:<!\[CDATA\[)?{VALUE}(?:\]\]>)?",
    ),
    "deepseek_v3": _calls(
        _json(
            r"(?:<｜tool▁calls▁begin｜>\s{0,4})?<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?"
            rf"{NAME}(?:<｜tool▁sep｜>|\s{{0,4}}```json)\s{{0,4}}",
            r"(?:```\s{0,4})?<｜tool▁call▁end｜>",
            NAMED_CALL,
        ),
        found_by=(("<｜tool▁call▁begin｜>", " tools"),),
        forced=CallSyntax(DEEPSEEK_CALL + "{name}<｜tool▁sep｜>", DEEPSEEK_END),
        forced_by={
            "```json": CallSyntax(DEEPSEEK_CALL + "function<｜tool▁sep｜>{name}\n```json\n", "\n```" + DEEPSEEK_END)
        },
        rest="<｜tool▁calls▁end｜>|<｜end▁of▁sentence｜>",
    ),
    "kimi_k2": _calls(
        _json(
            r"(?:<\|tool_calls_section_begin\|>\s{0,4})?<\|tool_call_begin\|>\s{0,4}(?:functions\.)?"
            r"(?P<name>[\w.-]{1,128}?)(?::\d{1,8})?\s{0,4}<\|tool_call_argument_begin\|>",
            r"<\|tool_call_end\|>",
            NAMED_CALL,
        ),
        found_by=(("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),),
        forced=CallSyntax(KIMI_CALL, "<|tool_call_end|><|tool_calls_section_end|>"),
        rest=rf"<\|tool_calls_section_end\|>|{END_MARKS}",
    ),
    "cohere_command3": _listed(
        *("<|START_ACTION|>", "<|END_ACTION|>", COHERE_REST), name_key="tool_name", arguments_key="parameters"
    ),
    "apertus": _listed("<|tools_prefix|>", "<|tools_suffix|>", name_key=None),
    "minimax": _listed("<tool_calls>", "</tool_calls>", rf"\[END FINAL RESPONSE\]|{END_MARKS}"),
    "nemotron_json": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "granite": _listed("<|tool_call|>", "", f"</?response>|{END_MARKS}", BARE_CALL),
    "phi4_mini_json": _calls(
        {**_json(r"\s{0,8}functools\s{0,4}(?=\[\s{0,8}\{)", ""), "starts_content": True},
        _json(rf"<\|tool_call\|>{LINES}(?=[\[{{])", r"<\|/tool_call\|>"),
        BARE_CALL,
        found_by=(("functools[",), ("<|tool|>", "<|/tool|>")),
        forced=CallSyntax("<|tool_call|>", "<|/tool_call|>", is_list=True),
        forced_by={"functools[": CallSyntax("functools", is_list=True)},
    ),
    "functionary": _calls(
        _json(rf"<function={NAME}>{LINES}(?=\{{)", "</function>", NAMED_CALL),
        found_by=(("<function=", "<|eom_id|>"),),
        forced=CallSyntax("<function={name}>", "</function>"),
    ),
    "olmo3": _calls(
        {"open": "<function_calls>", "close": "</function_calls>", "content": "pythonic"},
        found_by=(("<function_calls>",),),
        forced=CallSyntax("<function_calls>{name}(", "</function_calls>", is_json=False),
    ),
    "lfm2": _calls(
        {"open": "<|tool_call_start|>", "close": "<|tool_call_end|>", "content": "pythonic"},
        found_by=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
        forced=CallSyntax("<|tool_call_start|>[{name}(", "<|tool_call_end|>", is_json=False),
    ),
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
        content_close={"close_pattern": r"\[END FINAL RESPONSE\]"},
        thought=Thought("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    "granite": MarkedFormat(
        (
            _first("<think>", "</think>"),
            _first("Here(?: i|')s my thought process:", "Here is my response:", "Here's my response:"),
        ),
        found_by=(("<think></think>", "<response></response>"), ("Here is my thought process:",)),
        content_close={"close_pattern": "</?response>"},
        thought=Thought("<think>", "</think>"),
    ),
}
