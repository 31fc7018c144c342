"""The tools of a response: which are supported, their names for the model, and whether a call is forced.

Calls of custom tools carry text instead of JSON. The model calls these as functions with one string, `input`.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from frontend.api.answers.tools import AllowedChoice, Choice, Name, NamedChoice, ToolFunction, ToolUse, list_tools
from frontend.http.field_names import UnknownFields
from messages.errors import bad_request, quoted

UNSENT_TOOLS = frozenset(
    {
        *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
        *("file_search", "code_interpreter", "image_generation", "tool_search"),
    }
)
"""Tools that OpenAI's server runs. Clients send them with every request, to any server; the model does not see them."""

TOOLS_TEXT = (
    'a list of tools, each an object with a type ("function", "custom" or "namespace") and a name (1 to 128 letters, '
    "digits and _.-), which may have a description and: a function parameters (an object) and strict, a custom tool a "
    "format, a namespace tools"
)
CHOICE_TEXT = (
    '"none", "auto", "required", {"type": "function" or "custom", "name": …} or {"type": "allowed_tools", "mode": '
    '"auto" or "required", "tools": [{"type": "function" or "custom", "name": …}]}'
)


class CustomFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The format of a tool's input. The model sees it; it is enforced only for forced calls."""

    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


def as_function(name: Name, description: str | None, form: CustomFormat, where: str) -> ToolFunction:
    """Returns the function that represents a custom tool. Raises `RequestError` (400)."""
    text = [description] if description else []
    schema: dict[str, Any] = {"type": "string"}
    if form.type == "grammar":
        if form.syntax is None or not form.definition:
            raise bad_request(f"{where} must have a syntax (lark or regex) and a definition", "tools")
        text.append(f"The input must follow this {form.syntax} grammar:\n{form.definition}")
        if form.syntax == "regex":
            schema["pattern"] = f"^(?:{form.definition})$"
    parameters = {"type": "object", "properties": {"input": schema}, "required": ["input"]}
    return ToolFunction(name, "\n\n".join(text) or None, {**parameters, "additionalProperties": False})


class ResponseTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function, a custom tool, or a namespace of both. Fields of other tool types are dropped."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: CustomFormat | UnsetType = UNSET
    tools: list["ResponseTool"] | UnsetType = UNSET


class ToolName(NamedTuple):
    """A tool's name for clients."""

    name: str
    namespace: str | None = None

    @property
    def of_model(self) -> str:
        """The tool's name for the model."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Literal["function", "custom"]


class ResponseChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Meta(min_length=1)] | None = None


def served_tools(provided: Sequence[ResponseTool] | None, unknown: UnknownFields) -> list[ResponseTool]:
    """Returns the tools that the model sees. Raises `RequestError` (400) for tools that are not supported."""
    tools: list[ResponseTool] = []
    for index, tool in enumerate(provided or ()):
        if tool.type in UNSENT_TOOLS:
            unknown.ignore(f"tools[{index}] of type {tool.type}", "is a tool that this server does not run")
        else:
            _check(tool, f"tools[{index}]", ("function", "custom", "namespace"))
            tools.append(tool)
    return tools


def _check(tool: ResponseTool, where: str, types: tuple[str, ...]) -> None:
    if tool.type not in types:
        text = f"{where}: a tool of type {quoted(tool.type)} is not supported, only {', '.join(types)}"
        raise bad_request(f"{text}: tools that the client runs", "tools", "not_supported")
    if tool.name is None:
        hint = "; in this API it is next to the type, not in a function object" if tool.type == "function" else ""
        raise bad_request(f"{where}.name is required{hint}", "tools")
    if tool.type == "namespace":
        for index, member in enumerate(tool.tools or ()):
            _check(member, f"{where}.tools[{index}]", ("function", "custom"))


def named_tools(
    provided: Sequence[ResponseTool], namespace: str | None = None
) -> Iterator[tuple[ToolName, ResponseTool]]:
    """Yields the functions and custom tools, including those in namespaces."""
    for tool in provided:
        if tool.type == "namespace":
            yield from named_tools(tool.tools or (), tool.name)
        else:
            yield ToolName(tool.name or "", namespace), tool


def tool_use(provided: Sequence[ResponseTool]) -> ToolUse:
    """Raises `RequestError` (400)."""
    functions: list[ToolFunction] = []
    custom: dict[str, CustomFormat] = {}
    for tool_name, tool in named_tools(provided):
        name = tool_name.of_model
        if tool.type == "custom":
            custom[name] = tool.format or CustomFormat()
            functions.append(as_function(name, tool.description, custom[name], f"the format of {name}"))
        else:
            functions.append(ToolFunction(name, tool.description, tool.parameters, tool.strict))
    in_lark = [name for name, form in custom.items() if form.syntax == "lark"]
    return list_tools(functions)._replace(custom=custom, in_lark=in_lark)


def read_choice(choice: Literal["none", "auto", "required"] | ResponseChoice | None) -> Choice:
    """Raises `RequestError` (400)."""
    match choice:
        case None:
            return "auto"
        case ResponseChoice(type="function" | "custom", name=str(name)):
            return NamedChoice(name)
        case ResponseChoice(type="allowed_tools", mode=str(mode), tools=list(tools)):
            return AllowedChoice(tuple(tool.name for tool in tools), mode)
        case ResponseChoice():
            raise bad_request(f"tool_choice must be {CHOICE_TEXT}", "tool_choice")
        case choice:
            return choice
