"""One built-in format: its marks, as a part of a response template of transformers (`regions.py`).

The length of a mark is bounded, because it is matched again with each token until it is complete.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from messages.ring.requests import Thought

CALL = {"type": "function", "function": "{content}"}
NAMED_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

FENCE = "```"
WRAPPERS = "tools?|function_call|response|json|xml"
BARE_CALL = {
    "open_pattern": rf"(?:{FENCE}(?:json|xml)?\s{{0,8}})?(?:<(?:{WRAPPERS})>\s{{0,8}})?(?:\[\s{{0,8}})?"
    r'(?=\{\s{0,8}"name"\s{0,8}:)',
    "close_pattern": rf"</(?:{WRAPPERS}|tool_call)>|{FENCE}(?!\w)",
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
    "known_names_only": True,
}
"""A call without the marks of its format, as written by Qwen2.5-Coder and other small models: plain, in a Markdown
fence, or in invented tags."""

END_MARKS = r"<\|(?:im_end|endoftext|eot_id|eom_id)\|>\s{0,8}\Z"
"""Special tokens that end a turn. If special tokens are shown, one at the end of an answer is dropped; elsewhere it is
text. `</s>` is always text, because HTML has it."""


IdForm = Literal["", "short", "numbered"]


class CallSyntax(NamedTuple):
    """The syntax of a forced call. `{name}` in `begin` is the tool's name; without it, the JSON contains the name."""

    begin: str
    end: str = ""
    is_list: bool = False
    name_key: str | None = "name"
    """`None`: the only key of a call is the tool's name, and its value the arguments."""
    arguments_key: str = "arguments"
    separator: str | None = None
    """Text between calls. With `None`, and if calls are not a list, only one call is possible."""
    is_json: bool = True
    """False for arguments in another format: without a `tag`, a call can be allowed but not forced."""
    tag: tuple[str, str] | None = None
    """The texts around the value of each argument; `{key}` is the parameter's name."""


class MarkedFormat(NamedTuple):
    """The syntax of calls or of reasoning. `fields`: fields of a response template. `found_by`: see `find_format`.

    `forced`, `thought`: how a grammar writes calls and reasoning. `forced_by`: other ways to write calls, by a text of
    the chat templates that show them.
    """

    fields: tuple[dict[str, Any], ...]
    found_by: tuple[tuple[str, ...], ...]
    needs_special_tokens: bool = False
    content_close: Mapping[str, Any] = {}
    id_form: IdForm = ""
    """The ids of calls that the model's template wants: "short" of 9 letters and digits, or "numbered", as in
    `functions.get_weather:0`."""
    forced: CallSyntax | None = None
    thought: Thought | None = None
    forced_by: Mapping[str, CallSyntax] = {}

    def find_forced(self, chat_template: str) -> CallSyntax | None:
        return next((syntax for text, syntax in self.forced_by.items() if text in chat_template), self.forced)
