"""The format of a model's answers, from the flags, its response template and its chat template."""

import logging
import secrets
import string
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, find_format
from frontend.parsing.generic_format import GENERIC
from frontend.parsing.marked_format import CallSyntax, IdForm, MarkedFormat
from frontend.parsing.regions import KINDS, Format, FormatError, Kind, Region, read_region, read_template
from messages.config.server import Config
from messages.ring.requests import Thought
from runtime.chat_files import read_chat_files

NUM_ID_CHARACTERS = 24
NUM_SHORT_ID_CHARACTERS = 9
AUTO = "auto"
NONE = "none"
OWN = "the model's own response template"
FIELDS: dict[Kind, str] = {"calls": "tool_calls", "reasoning": "reasoning_content"}

ToolCalls = Literal["native", "generic"]

LETTERS = string.ascii_letters + string.digits

log = logging.getLogger("sluice.frontend")


class ModelFormat(NamedTuple):
    """The format of the model's answers; `None` instead of a format means plain text.

    `forced`, `thought`: how a grammar writes a call, and reasoning before it; `None` if it cannot.
    """

    with_tools: Format | None
    without_tools: Format | None
    id_form: IdForm = ""
    forced: CallSyntax | None = None
    thought: Thought | None = None
    is_generic: bool = False
    """The chat template has no place for tools: they are shown as text, and calls have the generic format."""

    @property
    def has_calls(self) -> bool:
        return self.with_tools is not None and self.with_tools.has_calls

    @property
    def tool_calls(self) -> ToolCalls | None:
        """How the model calls tools: in its own format, or in the generic one; `None` if it cannot."""
        return ("generic" if self.is_generic else "native") if self.has_calls else None

    def new_call_id(self, name: str, number: int) -> str:
        """Returns the id of a call of the tool `name`; `number` is its position in the conversation."""
        if self.id_form == "numbered":
            return f"functions.{name}:{number}"
        if self.id_form == "short":
            return "".join(secrets.choice(LETTERS) for _ in range(NUM_SHORT_ID_CHARACTERS))
        return "call_" + "".join(secrets.choice(LETTERS) for _ in range(NUM_ID_CHARACTERS))


class _Choice(NamedTuple):
    """The result of one of the flags. `entry` is `None` for the model's own format, and for none."""

    name: str
    regions: tuple[Region, ...] = ()
    entry: MarkedFormat | None = None


def load_model_format(config: Config) -> ModelFormat:
    """Returns the format of the model's answers, and logs it. Raises `BootError` like `read_chat_files`."""
    files = read_chat_files(config.facts.tokenizer_dir, config.model.chat_template)
    chat_template = "\n".join(files.templates.values())
    model = config.model
    chosen = choose_format(model.tool_call_parser, model.reasoning_parser, chat_template, files.response_template)
    has_own = chosen.has_calls or find_format(TOOL_FORMATS, chat_template) is not None
    if model.tool_call_parser != AUTO or has_own or not files.has_template:
        return chosen
    log.info("the chat template shows no known format of tool calls: tools and calls are written as text")
    return choose_format(GENERIC, model.reasoning_parser, chat_template, files.response_template)


def choose_format(tool_call_parser: str, reasoning_parser: str, chat_template: str, own: Any = None) -> ModelFormat:
    """Returns the format that the two flags select; `own` is the model's response template, if it has one.

    `auto` is the model's own format or, without a usable one, the format that the text of the chat template indicates.
    """
    own_format = None if own is None else _read_own(own)
    calls = _choose("calls", tool_call_parser, TOOL_FORMATS, chat_template, own_format)
    reasoning = _choose("reasoning", reasoning_parser, REASONING_FORMATS, chat_template, own_format)
    if calls.regions or reasoning.regions:
        log.info("tool calls are parsed as %s, reasoning as %s", calls.name, reasoning.name)
    if OWN in (calls.name, reasoning.name) and own_format is not None:
        content = tuple(region for region in own_format.regions if region.kind == "content")
        base = own_format._replace(regions=(*content, *reasoning.regions))
    else:
        base = Format(reasoning.regions, _rest_of(calls, reasoning), _needs_special_tokens(reasoning))
    with_tools = base._replace(
        regions=(*base.regions, *calls.regions),
        needs_special_tokens=base.needs_special_tokens or _needs_special_tokens(calls),
    )
    entry = calls.entry
    found = find_format(TOOL_FORMATS, chat_template)
    return ModelFormat(
        with_tools=with_tools if with_tools.regions else None,
        without_tools=base if base.regions else None,
        id_form=(entry and entry.id_form) or (TOOL_FORMATS[found].id_form if found else ""),
        forced=entry.find_forced(chat_template) if entry else None,
        is_generic=calls.name == GENERIC,
        thought=reasoning.entry.thought if reasoning.entry else _own_thought(own) if reasoning.regions else None,
    )


def _choose(
    kind: Kind, flag: str, formats: Mapping[str, MarkedFormat], chat_template: str, own: Format | None
) -> _Choice:
    if flag == AUTO and own is not None:
        return _Choice(OWN, tuple(region for region in own.regions if region.kind == kind))
    name = (find_format(formats, chat_template) or NONE) if flag == AUTO else flag
    if name == NONE:
        return _Choice(NONE)
    entry = formats[name]
    return _Choice(name, tuple(read_region(FIELDS[kind], field) for field in entry.fields), entry)


def _rest_of(*choices: _Choice) -> Region:
    """Returns the region outside all others: content, without the marks that end a turn."""
    closes = [choice.entry.content_close for choice in choices if choice.entry and choice.entry.content_close]
    return read_region("content", dict(closes[0]) if closes else {})


def _needs_special_tokens(choice: _Choice) -> bool:
    return choice.entry is not None and choice.entry.needs_special_tokens


def _own_thought(own: Any) -> Thought | None:
    """Returns the marks of reasoning in the model's response template, `None` if they are not plain texts."""
    for name, field in own["fields"].items():
        if KINDS.get(name) == "reasoning":
            begin, end = field.get("open"), field.get("close")
            if isinstance(begin, str) and isinstance(end, str):
                return Thought(begin, end, empty=f"{begin}\n\n{end}\n\n")
    return None


def _read_own(own: Any) -> Format | None:
    try:
        return read_template(own)
    except FormatError as error:
        log.error("the model's response template cannot be used: %s", error)
        return None
