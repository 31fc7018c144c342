"""The tools of a chat: their validation, their form for the chat template, and whether a call is forced."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from frontend.api.answers.generic_tools import offer_calls
from frontend.api.parameters.grammar import MAX_GRAMMAR_BYTES
from frontend.http.field_names import find_meant
from frontend.parsing.forced_calls import find_without_object, force_calls
from frontend.parsing.marked_format import CallSyntax
from frontend.parsing.model_format import ModelFormat
from messages.errors import bad_request, cut_value, quoted
from messages.ring.requests import CallGrammar, Grammar

MAX_TOOLS = 1024
MAX_FIELDS = 32
"""Fields of a function. Each unknown field is compared with all known ones, so their number is limited."""

NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,128}\Z"

TOOLS_TEXT = (
    f'a list of at most {MAX_TOOLS} tools, each an object with "type": "function" and a function that has a name '
    "(1 to 128 letters, digits and _.-) and may have a description, parameters (an object) and strict"
)
CHOICE_TEXT = (
    '"none", "auto", "required", {"type": "function", "function": {"name": …}} or {"type": "allowed_tools", '
    '"allowed_tools": {"mode": "auto" or "required", "tools": […]}}'
)

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]


class ToolFunction(msgspec.Struct, frozen=True):
    """`strict` is accepted, but only the arguments of forced calls are constrained by the schema.

    Fields of other servers and of `transformers` (`return`, `defer_loading`) are passed on to the chat template.
    """

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    function: ToolFunction
    type: Literal["function"] = "function"


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    function: ChosenFunction
    type: Literal["function"] = "function"


class AllowedTool(msgspec.Struct, frozen=True):
    """May be the complete tool; only its name counts."""

    function: NamedFunction
    type: Literal["function"]


class ToolSubset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1)]


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allowed_tools: ToolSubset
    type: Literal["allowed_tools"] = "allowed_tools"


class ToolUse(NamedTuple):
    """The tools that a chat may call: `listed` for the template, `schemas` of their parameters by name (may be empty).

    `forced`: grammar of the calls that the answer must consist of, `None` if the model chooses. `custom`: names of
    tools whose calls carry text. `in_lark`: names of tools whose input follows a Lark grammar. `offered`: grammar of
    the answer if the model chooses and has no format of calls of its own.
    """

    listed: list[dict[str, Any]]
    schemas: dict[str, Any]
    forced: Grammar | None = None
    custom: Collection[str] = ()
    in_lark: Collection[str] = ()
    offered: Grammar | None = None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        return {"tools": self.listed} if self.listed else {}


NO_TOOLS = ToolUse([], {})


class NamedChoice(NamedTuple):
    """The one tool that must be called."""

    name: str


class AllowedChoice(NamedTuple):
    """The model sees only the tools in `names`; `mode` decides whether it must call one."""

    names: tuple[str, ...]
    mode: Literal["auto", "required"]


Choice = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


def check_tools(provided: list[Any] | None) -> ToolUse:
    """Returns the tools of a chat body. Raises `RequestError` (400), which names the field at fault."""
    if not provided:
        return NO_TOOLS
    _check_number(provided)
    try:
        tools = msgspec.convert(provided, list[Tool])
    except msgspec.ValidationError as error:
        raise bad_request(f"tools must be {TOOLS_TEXT}: {_explain(error, 'tools')}", "tools") from None
    schemas = _schemas_of([tool.function for tool in tools])
    for index, entry in enumerate(provided):
        _refuse_misspelled(entry["function"], f"tools[{index}].function")
    return ToolUse([{"type": "function", **entry} for entry in provided], schemas)


def _refuse_misspelled(function: dict[str, Any], where: str) -> None:
    if len(function) > MAX_FIELDS:
        raise bad_request(f"{where} may have at most {MAX_FIELDS} fields, got {len(function)}", "tools")
    for name in function.keys() - set(ToolFunction.__struct_fields__):
        meant = find_meant(name, ToolFunction.__struct_fields__)
        if meant is not None:
            raise bad_request(f"{where}: unknown field {quoted(name)}: did you mean {meant}?", "tools")


def list_tools(functions: Sequence[ToolFunction]) -> ToolUse:
    """Returns `functions` as the tools of a chat. Raises `RequestError` (400)."""
    _check_number(functions)
    listed: list[dict[str, Any]] = [
        {"type": "function", "function": {k: v for k, v in msgspec.structs.asdict(function).items() if v is not None}}
        for function in functions
    ]
    return ToolUse(listed, _schemas_of(functions))


def _check_number(provided: Sequence[Any]) -> None:
    if len(provided) > MAX_TOOLS:
        raise bad_request(f"tools must be at most {MAX_TOOLS}, got {len(provided)}", "tools")


def _schemas_of(functions: Sequence[ToolFunction]) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for index, function in enumerate(functions):
        if function.name in schemas:
            text = f"tools[{index}]: there are two tools {quoted(function.name)}, give each its own name"
            raise bad_request(text, "tools")
        schemas[function.name] = function.parameters or {}
    return schemas


def choose_tools(tools: ToolUse, choice: Choice, model_format: ModelFormat, *, allows_several: bool) -> ToolUse:
    """Returns the tools that the model may or must call, none if `choice` is "none". Raises `RequestError` (400)."""
    _check_choice(choice, tools)
    if choice == "none" or not tools.listed:
        return NO_TOOLS
    if not model_format.has_calls:
        raise bad_request(
            "the model does not support tools: it has no chat template, or --tool-call-parser is none; name a format "
            'with it when the server starts ("generic" suits any model), or send "tool_choice": "none"',
            "tools",
            "not_supported",
        )
    if isinstance(choice, AllowedChoice):
        tools, choice = _only(tools, choice.names), choice.mode
    if choice == "auto":
        if not model_format.is_generic or model_format.forced is None:
            return tools
        calls = _call_grammar(tools.schemas, model_format.forced, allows_several)
        return tools._replace(offered=offer_calls(_bounded(calls)))
    schemas = tools.schemas
    if isinstance(choice, NamedChoice):
        schemas, allows_several = {choice.name: schemas[choice.name]}, False
    for name in tools.in_lark:
        if name in schemas:
            text = f"a call of {quoted(name)} cannot be forced: its input is a grammar in Lark's form; give"
            raise bad_request(f'{text} a regex, or tool_choice "auto"', "tool_choice", "not_supported")
    without_object = find_without_object(schemas)
    if without_object is not None:
        text = f"a call of {quoted(without_object)} cannot be forced: its parameters must be an object"
        raise bad_request(f'{text} ("type": "object", with the value as a property)', "tools")
    return tools._replace(forced=_force(schemas, model_format, allows_several))


def _only(tools: ToolUse, names: Collection[str]) -> ToolUse:
    listed = [tool for tool in tools.listed if tool["function"]["name"] in names]
    return tools._replace(listed=listed, schemas={n: schema for n, schema in tools.schemas.items() if n in names})


def _force(schemas: Mapping[str, Any], model_format: ModelFormat, allows_several: bool) -> Grammar:
    """Returns the grammar of an answer that calls one or several of the tools. Raises `RequestError` (400)."""
    forced = model_format.forced
    if forced is None or not (forced.is_json or forced.tag):
        why = "the arguments are not JSON in the model's format of calls"
        text = f'tool_choice must be "auto" or "none", for a call cannot be forced: {why}'
        raise bad_request(text, "tool_choice", "not_supported")
    return Grammar("calls", "", "tools", calls=_bounded(_call_grammar(schemas, forced, allows_several)))


def _bounded(calls: CallGrammar) -> CallGrammar:
    if sum(len(schema or b"") for _, schema, _ in calls.calls) > MAX_GRAMMAR_BYTES:
        raise bad_request(f"tools may have at most {MAX_GRAMMAR_BYTES} characters with this tool_choice", "tools")
    return calls


def with_calls(answer: Grammar, tools: ToolUse, model_format: ModelFormat, *, allows_several: bool) -> Grammar:
    """Returns the grammar of an answer that either matches `answer` or calls tools with any arguments.

    A structural tag itself determines where calls are allowed. Raises `RequestError` (400).
    """
    if not tools.listed or answer.kind == "structural_tag":
        return answer
    if model_format.forced is None:
        raise bad_request(
            f"{answer.param} cannot be combined with tools: the model's own response template writes calls in no known "
            'format: send "tool_choice": "none", or name a format with --tool-call-parser when the server starts',
            answer.param,
            "not_supported",
        )
    calls = _call_grammar(dict.fromkeys(tools.schemas), model_format.forced, allows_several)
    return msgspec.structs.replace(answer, calls=calls)


def _call_grammar(schemas: Mapping[str, Any], forced: CallSyntax, allows_several: bool) -> CallGrammar:
    separator = forced.separator if allows_several else None
    calls = force_calls(forced, schemas, allows_several=allows_several)
    return CallGrammar((), separator, tuple(schemas), forced.tag).with_calls(calls)


def _check_choice(choice: Choice, tools: ToolUse) -> None:
    if choice in ("none", "auto"):
        return
    if not tools.listed:
        raise bad_request('tool_choice must be "none" or "auto": there are no tools', "tool_choice")
    names = (
        (choice.name,) if isinstance(choice, NamedChoice) else choice.names if isinstance(choice, AllowedChoice) else ()
    )
    for name in names:
        if name not in tools.schemas:
            raise bad_request(f"tool_choice must have the name of one of the tools, got {quoted(name)}", "tool_choice")


def read_choice(choice: str | dict[str, Any] | None) -> Choice:
    """Returns the `tool_choice` of a chat body. Raises `RequestError` (400)."""
    match choice:
        case None:
            return "auto"
        case "none" | "auto" | "required":
            return choice
        case _:
            try:
                if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
                    allowed = msgspec.convert(choice, AllowedTools).allowed_tools
                    return AllowedChoice(tuple(tool.function.name for tool in allowed.tools), allowed.mode)
                return NamedChoice(msgspec.convert(choice, ToolChoice).function.name)
            except msgspec.ValidationError as error:
                raise bad_request(
                    f"tool_choice must be {CHOICE_TEXT}: {_explain(error, 'tool_choice')}", "tool_choice"
                ) from None


def _explain(error: msgspec.ValidationError, name: str) -> str:
    """Returns msgspec's message with the position written as `name[3].function`."""
    text, found, place = cut_value(str(error)).partition(" - at `$")
    return f"{text} (at {name}{place.rstrip('`')})" if found else text
