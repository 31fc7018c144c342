"""The tools of a response: which are served, and whether the model may or must call one."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from frontend.api.tools import Allowed, Choice, Name, Named, ToolFunction, ToolUse, list_tools
from frontend.http.field_names import UnknownFields
from messages.errors import bad_request

UNSENT_TOOLS = frozenset({"web_search", "web_search_preview"})
"""Tools that clients send with every request, whoever serves it: the model is not told of them."""

TOOLS_TEXT = (
    'a list of tools, each an object with "type": "function" and a name (1 to 128 letters, digits and _.-), which may '
    "have a description, parameters (an object) and strict"
)
CHOICE_TEXT = (
    '"none", "auto", "required", {"type": "function", "name": …} or {"type": "allowed_tools", "mode": "auto" or '
    '"required", "tools": [{"type": "function", "name": …}]}'
)


class ResponseTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function; of other types, fields that it has not are dropped."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Literal["function"]


class ResponseChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Meta(min_length=1)] | None = None


def served_tools(given: Sequence[ResponseTool] | None, unknown: UnknownFields) -> list[ResponseTool]:
    """Returns the tools that the model is told of. Raises `RequestError` (400) for those that cannot be served."""
    tools: list[ResponseTool] = []
    for index, tool in enumerate(given or ()):
        if tool.type in UNSENT_TOOLS:
            unknown.ignore(f"tools[{index}] of type {tool.type}", "is a tool that this server does not run")
        elif tool.type != "function":
            raise bad_request(
                f"tools[{index}]: a tool of type {tool.type[:60]!r} is not supported, only functions, which the client "
                "runs",
                "tools",
                "not_supported",
            )
        elif tool.name is None:
            raise bad_request(f"tools[{index}].name is required", "tools")
        else:
            tools.append(tool)
    return tools


def tool_use(given: Sequence[ResponseTool]) -> ToolUse:
    """Raises `RequestError` (400)."""
    return list_tools([ToolFunction(tool.name or "", tool.description, tool.parameters, tool.strict) for tool in given])


def read_choice(choice: Literal["none", "auto", "required"] | ResponseChoice | None) -> Choice:
    """Raises `RequestError` (400)."""
    match choice:
        case None:
            return "auto"
        case ResponseChoice(type="function", name=str(name)):
            return Named(name)
        case ResponseChoice(type="allowed_tools", mode=str(mode), tools=list(tools)):
            return Allowed(tuple(tool.name for tool in tools), mode)
        case ResponseChoice():
            raise bad_request(f"tool_choice must be {CHOICE_TEXT}", "tool_choice")
        case choice:
            return choice
