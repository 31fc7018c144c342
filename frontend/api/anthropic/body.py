"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`, and their conversion to a conversation."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from frontend.api.answers.chat_messages import MAX_MESSAGES
from frontend.api.answers.conversation import Conversation, Conversations
from frontend.api.answers.thinking import template_kwargs
from frontend.api.answers.tools import Choice, Name, NamedChoice, ToolFunction, ToolUse, list_tools
from frontend.api.answers.turns import Turns
from frontend.api.anthropic.content import Content, ContentBlock, read_block, read_content, read_result, unreadable
from frontend.api.anthropic.errors import THREAD
from frontend.api.parameters.generation_body import ModelFields, ProgressOptions, check_shown, truncation_of
from frontend.api.parameters.grammar import ResponseFormat, SchemaFormat
from frontend.api.parameters.sampling import AT_LEAST_ONE_TEXT, MAX_INT32, MAX_STOPS, Int64, StopStrings
from messages.errors import bad_request, quoted
from messages.ring.requests import THINKING_SWITCHES

T = TypeVar("T")

REFUSED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],), THREAD: ()}
IGNORED = (
    *("betas", "cache_control", "context_management", "diagnostics", "inference_geo", "speed", "user_profile_id"),
    *("workspace_id", "anthropic_beta"),
)

ROLES = ("user", "assistant", "system")
UNSHOWN_BLOCKS = frozenset({"redacted_thinking"})
"""Blocks that only their issuer can read; they are left out."""

BILLING = "x-anthropic-billing-header:"
"""The beginning of a system block that Claude Code writes for its own server. It differs between sessions, so the text
after it would never be found in the prefix cache. Such blocks are left out."""

MIN_BUDGET_TOKENS = 1024
"""The minimum of Anthropic's API."""

MESSAGES_TEXT = (
    f"a list of messages, not empty and at most {MAX_MESSAGES}, each with a role (user or assistant) and a content (a "
    "string or a list of blocks: text, image, document, search_result, tool_use, tool_result, thinking)"
)
TOOLS_TEXT = (
    "a list of tools, each an object with a name (1 to 128 letters, digits and _.-) and an input_schema (an object), "
    "which may have a description"
)
CHOICE_TEXT = 'an object with a type: "auto", "any", "none", or "tool" with a name'


class Message(msgspec.Struct, frozen=True):
    role: str
    content: Content


class MessageTool(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class MessageChoice(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Int64 | None = None
    display: str | None = None


class JsonFormat(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    effort: str | None = None
    format: JsonFormat | None = None


class PromptFields(ModelFields, frozen=True, kw_only=True):
    """The fields that make up the prompt, and the sampling fields of every endpoint."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES, description=MESSAGES_TEXT)]
    system: Annotated[Content | None, Meta(description="a string or a list of text blocks")] = None
    tools: Annotated[list[MessageTool] | None, Meta(description=TOOLS_TEXT)] = None
    tool_choice: Annotated[MessageChoice | None, Meta(description=CHOICE_TEXT)] = None
    thinking: Annotated[Thinking | None, Meta(description='an object with a type: "enabled" or "disabled"')] = None
    output_config: Annotated[OutputConfig | None, Meta(description="an object with effort and format")] = None
    output_format: Annotated[JsonFormat | None, Meta(description="output_config.format, as older clients send it")] = (
        None
    )


class CountBody(PromptFields, frozen=True, kw_only=True):
    pass


class MessagesBody(PromptFields, frozen=True, kw_only=True):
    max_tokens: Annotated[  # pyright: ignore[reportGeneralTypeIssues] (here it is required)
        int, Meta(ge=1, le=MAX_INT32, description=AT_LEAST_ONE_TEXT)
    ]
    stop_sequences: Annotated[
        StopStrings | None, Meta(description=f"a list of up to {MAX_STOPS} strings, none empty")
    ] = None
    stream_options: Annotated[ProgressOptions | None, Meta(description="an object with include_progress")] = None


def make_conversation(body: PromptFields, conversations: Conversations) -> Conversation:
    """Converts `body` to a conversation. Raises `RequestError` (400), which names the field at fault."""
    check_shown(body)
    stop = body.stop_sequences if isinstance(body, MessagesBody) else None
    output_format = (body.output_config and body.output_config.format) or body.output_format
    if output_format is not None:
        body = msgspec.structs.replace(
            body, response_format=ResponseFormat("json_schema", SchemaFormat(output_format.schema, "output"))
        )
    params = conversations.make_params(msgspec.structs.replace(body, stop=stop or body.stop))
    if output_format is not None and params.grammar is not None:
        grammar = msgspec.structs.replace(params.grammar, param="output_config.format")
        params = msgspec.structs.replace(params, grammar=grammar)
    turns = Turns(reads_images=conversations.reads_images)
    if body.system is not None:
        turns.show("system", *read_content(_without_billing(body.system), "system"))
    for index, message in enumerate(body.messages):
        _add(turns, message, f"messages[{index}]")
    if not turns.messages:
        raise bad_request("messages has nothing that the model can read", "messages")
    last = turns.messages[-1]
    choice = body.tool_choice or MessageChoice(type="auto")
    thinking = body.thinking or Thinking(type="disabled")
    allows_several = not choice.disable_parallel_tool_use
    is_off = thinking.type == "disabled"
    return Conversation(
        messages=turns.messages,
        params=params,
        tools=conversations.choose_tools(_tools(body), _choice(choice), allows_several=allows_several),
        template_kwargs=template_kwargs(
            body.output_config.effort if body.output_config else None, dict.fromkeys(THINKING_SWITCHES, not is_off)
        ),
        is_thinking_off=is_off and body.thinking is not None,
        thinking_budget=_budget(thinking, body.max_tokens),
        continue_final_message=last.role == "assistant" and bool(last.text) and not last.tool_calls,
        allows_parallel_calls=allows_several,
        shows_reasoning=thinking.display != "omitted",
        add_special_tokens=bool(body.add_special_tokens),
        truncation=truncation_of(body, params, conversations.context_tokens),
    )


def _budget(thinking: Thinking, max_tokens: int | None) -> int | None:
    """Raises `RequestError` (400)."""
    budget = thinking.budget_tokens
    if thinking.type != "enabled" or budget is None:
        return None
    if budget < MIN_BUDGET_TOKENS:
        text = f"thinking.budget_tokens must be at least {MIN_BUDGET_TOKENS}, got {budget}"
        raise bad_request(text, "thinking.budget_tokens")
    if max_tokens is not None and budget >= max_tokens:
        text = f"max_tokens must be greater than thinking.budget_tokens, got {max_tokens} and {budget}"
        raise bad_request(text, "max_tokens")
    return budget


def _add(turns: Turns, message: Message, where: str) -> None:
    if message.role not in ROLES:
        raise bad_request(f"{where}.role must be user or assistant, got {quoted(message.role)}", "messages")
    if isinstance(message.content, str):
        turns.show(message.role, message.content)
        return
    if not message.content:
        raise bad_request(f"{where}.content must not be empty", "messages")
    for index, block in enumerate(message.content):
        _add_block(turns, message.role, block, f"{where}.content[{index}]")


def _add_block(turns: Turns, role: str, block: ContentBlock, where: str) -> None:
    match block.type:
        case "thinking" if role == "assistant":
            turns.think(_needed(block.thinking, f"{where}.thinking"))
        case "tool_use" if role == "assistant":
            name = _needed(block.name, f"{where}.name")
            turns.call(_needed(block.id, f"{where}.id"), name, _needed(block.input, f"{where}.input"))
        case "tool_result" if role == "user":
            call_id = _needed(block.tool_use_id, f"{where}.tool_use_id")
            turns.result(call_id, read_result(block.content or "", f"{where}.content"))
        case "thinking" | "tool_use" | "tool_result":
            raise bad_request(f"{where}: a block of type {block.type} cannot be in a message of the {role}", "messages")
        case kind if kind in UNSHOWN_BLOCKS:
            pass
        case _:
            pieces = read_block(block, where)
            if pieces is None:
                raise unreadable(block, where)
            turns.show(role, *pieces)


def _without_billing(system: Content) -> Content:
    if isinstance(system, str):
        return system
    return [block for block in system if not (block.text or "").startswith(BILLING)]


def _needed(value: T | None, where: str) -> T:
    if value is None:
        raise bad_request(f"{where} is required", where.partition("[")[0])
    return value


def _tools(body: PromptFields) -> ToolUse:
    functions: list[ToolFunction] = []
    for index, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            raise bad_request(
                f"tools[{index}]: a tool of type {quoted(tool.type)} is not supported: give one that the client runs, "
                "with an input_schema and without a type",
                "tools",
                "not_supported",
            )
        schema = _needed(tool.input_schema, f"tools[{index}].input_schema")
        functions.append(ToolFunction(tool.name, tool.description, schema))
    return list_tools(functions)


def _choice(choice: MessageChoice) -> Choice:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            return NamedChoice(_needed(choice.name, "tool_choice.name"))
        case kind:
            return kind
