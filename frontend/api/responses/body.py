"""The body of `POST /v1/responses`, and the conversation that it asks for."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from frontend.api.chat_messages import ChatMessage
from frontend.api.conversation import Conversation, template_kwargs
from frontend.api.grammar import ResponseFormat, SchemaFormat
from frontend.api.openai_body import ModelFields, check_shown, truncation_of
from frontend.api.responses.items import Input
from frontend.api.sampling import AtLeastOne, NumLogprobs, Sampling, Switch
from frontend.api.tools import Allowed, Choice, Name, Named, ToolFunction, ToolUse, choose_tools, list_tools
from frontend.http.field_names import UnknownFields
from frontend.parsing.model_format import ModelFormat
from messages.errors import bad_request

REFUSED: dict[str, tuple[Any, ...]] = {"conversation": (), "prompt": ()}
IGNORED = (
    *("max_tool_calls", "prompt_cache_options", "context_management", "client_metadata", "access_programs"),
    *("background_options", "image"),
)
UNSENT_TOOLS = frozenset({"web_search", "web_search_preview"})
"""Tools that clients send with every request, whoever serves it: the model is not told of them."""

LOGPROBS = "message.output_text.logprobs"
REASONING = "reasoning.encrypted_content"
INCLUDABLE = (LOGPROBS, REASONING)
OTHER_INCLUDABLE = (
    *("web_search_call.action.sources", "web_search_call.results", "code_interpreter_call.outputs"),
    *("computer_call_output.output.image_url", "file_search_call.results", "message.input_image.image_url"),
)
"""What there cannot be here: it is about tools that are not run, and images."""

TOOLS_TEXT = (
    'a list of tools, each an object with "type": "function" and a name (1 to 128 letters, digits and _.-), which may '
    "have a description, parameters (an object) and strict"
)
CHOICE_TEXT = (
    '"none", "auto", "required", {"type": "function", "name": …} or {"type": "allowed_tools", "mode": "auto" or '
    '"required", "tools": [{"type": "function", "name": …}]}'
)
FORMAT_TEXT = 'an object with a format, whose type is "text", "json_object" or "json_schema" (with name and schema)'


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


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    schema: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat = TextFormat()
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: Switch = None


class ResponseBody(ModelFields, frozen=True, kw_only=True):
    """OpenAI's fields, and what every endpoint samples by."""

    input: Input
    instructions: Annotated[str | None, Meta(description="a string")] = None
    previous_response_id: Annotated[str | None, Meta(description="the id of a stored response")] = None
    max_output_tokens: AtLeastOne = None
    tools: Annotated[list[ResponseTool] | None, Meta(description=TOOLS_TEXT)] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ResponseChoice | None, Meta(description=CHOICE_TEXT)
    ] = None
    parallel_tool_calls: Switch = None
    text: Annotated[TextOptions | None, Meta(description=FORMAT_TEXT)] = None
    reasoning: Annotated[ReasoningOptions | None, Meta(description="an object with an effort")] = None
    include: Annotated[list[str] | None, Meta(description=f"a list, of {' and '.join(INCLUDABLE)}")] = None
    top_logprobs: NumLogprobs = None
    truncation: Annotated[Literal["auto", "disabled"] | None, Meta(description='"auto" or "disabled"')] = None
    background: Switch = None
    stream_options: Annotated[ResponseStreamOptions | None, Meta(description="an object")] = None
    safety_identifier: Annotated[str | None, Meta(description="a string")] = None
    prompt_cache_key: Annotated[str | None, Meta(description="a string")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="an object")] = None

    def includes(self, name: str) -> bool:
        return name in (self.include or ())


def make_conversation(
    body: ResponseBody,
    messages: Sequence[ChatMessage],
    sampling: Sampling,
    model_format: ModelFormat,
    *,
    context_tokens: int,
    seed: int,
) -> Conversation:
    """Returns the conversation that `messages` are. Raises `RequestError` (400)."""
    check_shown(body)
    if body.truncation == "auto":
        body = msgspec.structs.replace(body, truncate_prompt_tokens=-1, truncation_side="left")
    for name in body.include or ():
        if name not in (*INCLUDABLE, *OTHER_INCLUDABLE):
            raise bad_request(f"include may have {' and '.join(INCLUDABLE)}, got {name[:60]!r}", "include")
    allows_several = body.parallel_tool_calls is not False
    params = sampling.make_params(
        msgspec.structs.replace(
            body,
            max_tokens=body.max_tokens if body.max_output_tokens is None else body.max_output_tokens,
            response_format=body.response_format or _response_format(body.text),
        ),
        max_tokens=context_tokens,
        seed=seed,
    )
    grammar = params.grammar
    if grammar is not None and body.response_format is None and grammar.param == "response_format":
        grammar = msgspec.structs.replace(grammar, param="text.format")
    has_logprobs = body.includes(LOGPROBS) or bool(body.top_logprobs)
    params = msgspec.structs.replace(
        params, grammar=grammar, num_logprobs=(body.top_logprobs or 0) if has_logprobs else None
    )
    return Conversation(
        messages=messages,
        params=params,
        tools=choose_tools(_tools(body), _choice(body), model_format, allows_several=allows_several),
        template_kwargs=_template_kwargs(body),
        allows_parallel_calls=allows_several,
        add_special_tokens=bool(body.add_special_tokens),
        truncation=truncation_of(body, params, context_tokens),
    )


def served_tools(body: ResponseBody, unknown: UnknownFields) -> list[ResponseTool]:
    """Returns the tools that the model is told of. Raises `RequestError` (400) for those that cannot be served."""
    tools: list[ResponseTool] = []
    for index, tool in enumerate(body.tools or ()):
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


def _tools(body: ResponseBody) -> ToolUse:
    return list_tools(
        [ToolFunction(tool.name or "", tool.description, tool.parameters, tool.strict) for tool in body.tools or ()]
    )


def _choice(body: ResponseBody) -> Choice:
    match body.tool_choice:
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


def _template_kwargs(body: ResponseBody) -> dict[str, Any]:
    effort = None if body.reasoning is None else body.reasoning.effort
    others = {"enable_thinking": False} if effort == "none" else {}
    return template_kwargs(effort, {**others, **(body.chat_template_kwargs or {})})


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    """Returns the format as a chat has it. Raises `RequestError` (400)."""
    asked = TextFormat() if text is None else text.format
    if asked.type != "json_schema":
        return None if asked.type == "text" else ResponseFormat(asked.type)
    if asked.schema is UNSET:
        raise bad_request("text.format.schema is required with this type", "text")
    return ResponseFormat("json_schema", SchemaFormat(asked.schema))
