"""The built-in formats, and how `auto` finds those of a model."""

from collections.abc import Mapping

from frontend.parsing.family_formats import FAMILY_REASONING_FORMATS, FAMILY_TOOL_FORMATS, NAME, calls, json_field
from frontend.parsing.generic_format import GENERIC, GENERIC_CALLS
from frontend.parsing.harmony import HARMONY_CALLS, HARMONY_REASONING
from frontend.parsing.marked_format import BARE_CALL, CALL, NAMED_CALL, CallSyntax, MarkedFormat
from messages.ring.requests import Thought

FUNCTION_TAG = {
    "open_pattern": r"<function=(?P<name>[^>\n]{1,128})>",
    "close_pattern": r"</function>(?:\s{0,8}</tool_call>|\s{0,8}\Z|(?=\s{9}|\s{0,8}(?:[^\s<]|<[^/]|</[^t]|</t[^o])))",
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]{1,256})>\n?(?P<value>.*?)\n?</parameter>"},
    "transform": NAMED_CALL,
}
"""Qwen3-Coder often omits `<tool_call>` or `</tool_call>`. An optional group at the end of a pattern would not wait
for text that it could match, so the pattern lists what else may follow."""

MISTRAL_END = r"(?=\[TOOL_CALLS\])|</s>"

TOOL_FORMATS: dict[str, MarkedFormat] = {
    **FAMILY_TOOL_FORMATS,
    "openai": HARMONY_CALLS,
    "qwen3_coder": calls(
        {**FUNCTION_TAG, "open_pattern": rf"<tool_call>\s{{0,8}}{FUNCTION_TAG['open_pattern']}"},
        {**FUNCTION_TAG, "known_names_only": True},
        BARE_CALL,
        found_by=(("<tool_call>", "<function="),),
        forced=CallSyntax(
            *("<tool_call>\n<function={name}>\n", "</function>\n</tool_call>"),
            separator="\n",
            is_json=False,
            tag=("<parameter={key}>\n", "\n</parameter>\n"),
        ),
    ),
    "hermes": calls(
        {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "transform": CALL},
        BARE_CALL,
        found_by=(("<tool_call>",),),
        forced=CallSyntax("<tool_call>\n", "\n</tool_call>", separator="\n"),
    ),
    "mistral": calls(
        json_field(r"\[TOOL_CALLS\]\s{0,8}(?=[\[{])", MISTRAL_END),
        json_field(rf"\[TOOL_CALLS\]{NAME}(?:\[CALL_ID\]\w{{1,64}})?\[ARGS\]", MISTRAL_END, NAMED_CALL),
        BARE_CALL,
        found_by=(("[TOOL_CALLS]",),),
        forced=CallSyntax("[TOOL_CALLS]", is_list=True),
        forced_by={"[ARGS]": CallSyntax("[TOOL_CALLS]{name}[ARGS]", separator="")},
    )._replace(id_form="short"),
    "pythonic": MarkedFormat(
        (
            {
                "open_pattern": r"\s{0,8}(?:<\|python_start\|>)?\s{0,8}(?=\[\s{0,8}[A-Za-z_][\w.]{0,127}\()",
                "close": "<|python_end|>",
                "content": "pythonic",
                "starts_content": True,
            },
        ),
        found_by=(("<|python_start|>",), ("[func_name1(",)),
        forced=CallSyntax("[{name}(", is_json=False),
    ),
    "llama3_json": MarkedFormat(
        ({**json_field(r'\s{0,8}(?:<\|python_tag\|>)?\s{0,8}(?=\{\s{0,8}")', ""), "starts_content": True}, BARE_CALL),
        found_by=(("<|python_tag|>",), ("<|start_header_id|>ipython",), ('"parameters": dictionary',)),
        forced=CallSyntax("", arguments_key="parameters"),
    ),
    GENERIC: GENERIC_CALLS,
}
"""By their names in vLLM. The first one that matches the chat template is the model's."""

THINK = ({"open_pattern": r"\s{0,8}<think>", "close": "</think>", "starts_content": True},)
"""Within content the mark is plain text, as in an answer about it."""

THINK_THOUGHT = Thought("<think>", "</think>", empty="<think>\n\n</think>\n\n")

REASONING_FORMATS: dict[str, MarkedFormat] = {
    **FAMILY_REASONING_FORMATS,
    "openai_gptoss": HARMONY_REASONING,
    "qwen3": MarkedFormat(THINK, found_by=(("<think>", "enable_thinking"),), thought=THINK_THOUGHT),
    "deepseek_r1": MarkedFormat(THINK, found_by=(("<think>",), ("</think>",)), thought=THINK_THOUGHT),
    "mistral": MarkedFormat(
        ({"open_pattern": r"\s{0,8}\[THINK\]", "close": "[/THINK]", "starts_content": True},),
        found_by=(("[THINK]",),),
        needs_special_tokens=True,
        thought=Thought("[THINK]", "[/THINK]", empty="[THINK][/THINK]"),
    ),
}

UNREADABLE = ("]<]minimax[>[",)
"""Marks of formats that cannot be read and contain the marks of others."""


def find_format(formats: Mapping[str, MarkedFormat], chat_template: str) -> str | None:
    """Returns the first format of which all texts in one group of `found_by` occur in the chat template."""
    if any(mark in chat_template for mark in UNREADABLE):
        return None
    for name, entry in formats.items():
        if any(all(text in chat_template for text in texts) for texts in entry.found_by):
            return name
    return None
