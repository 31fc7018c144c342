"""The body of `POST /v1/responses`, and its conversion to a conversation."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from frontend.api.answers.chat_messages import ChatMessage
from frontend.api.answers.conversation import Conversation, Conversations
from frontend.api.answers.thinking import ThinkingBudget, checked_budget, template_kwargs, turns_thinking_off
from frontend.api.parameters.generation_body import ModelFields, ProgressOptions, check_shown, truncation_of
from frontend.api.parameters.grammar import ResponseFormat, SchemaFormat
from frontend.api.parameters.sampling import AtLeastOne, NumLogprobs, Switch
from frontend.api.responses.items import Input
from frontend.api.responses.tools import CHOICE_TEXT, TOOLS_TEXT, ResponseChoice, ResponseTool, read_choice, tool_use
from frontend.images.parts import LIMITS_TEXT, read_limits
from messages.errors import bad_request, quoted

REFUSED: dict[str, tuple[Any, ...]] = {"conversation": (), "prompt": ()}
IGNORED = (
    *("prompt_cache_options", "context_management", "client_metadata", "access_programs"),
    *("background_options", "image"),
)
LOGPROBS = "message.output_text.logprobs"
REASONING = "reasoning.encrypted_content"
INCLUDABLE = (LOGPROBS, REASONING)
OTHER_INCLUDABLE = (
    *("web_search_call.action.sources", "web_search_call.results", "code_interpreter_call.outputs"),
    *("computer_call_output.output.image_url", "file_search_call.results", "message.input_image.image_url"),
)
"""Values without effect: images are always shown, and the others concern tools that this server does not run."""

FORMAT_TEXT = 'an object with a format, whose type is "text", "json_object" or "json_schema" (with name and schema)'


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


class ResponseStreamOptions(ProgressOptions, frozen=True):
    include_obfuscation: Switch = None


class ResponseBody(ModelFields, frozen=True, kw_only=True):
    """OpenAI's fields, and the sampling fields of every endpoint."""

    input: Input
    instructions: Annotated[str | None, Meta(description="a string")] = None
    previous_response_id: Annotated[str | None, Meta(description="the id of a stored response")] = None
    max_output_tokens: AtLeastOne = None
    tools: Annotated[list[ResponseTool] | None, Meta(description=TOOLS_TEXT)] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ResponseChoice | None, Meta(description=CHOICE_TEXT)
    ] = None
    parallel_tool_calls: Switch = None
    max_tool_calls: AtLeastOne = None
    text: Annotated[TextOptions | None, Meta(description=FORMAT_TEXT)] = None
    reasoning: Annotated[ReasoningOptions | None, Meta(description="an object with an effort")] = None
    thinking_token_budget: ThinkingBudget = None
    include: Annotated[list[str] | None, Meta(description=f"a list, of {' and '.join(INCLUDABLE)}")] = None
    top_logprobs: NumLogprobs = None
    truncation: Annotated[Literal["auto", "disabled"] | None, Meta(description='"auto" or "disabled"')] = None
    background: Switch = None
    stream_options: Annotated[ResponseStreamOptions | None, Meta(description="an object")] = None
    safety_identifier: Annotated[str | None, Meta(description="a string")] = None
    prompt_cache_key: Annotated[str | None, Meta(description="a string")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="an object")] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, Meta(description=LIMITS_TEXT)] = None

    def includes(self, name: str) -> bool:
        return name in (self.include or ())


def make_conversation(
    body: ResponseBody, messages: Sequence[ChatMessage], conversations: Conversations
) -> Conversation:
    """Returns the conversation of `messages` with the options of `body`. Raises `RequestError` (400)."""
    check_shown(body)
    if body.truncation == "auto":
        body = msgspec.structs.replace(body, truncate_prompt_tokens=-1, truncation_side="left")
    for name in body.include or ():
        if name not in (*INCLUDABLE, *OTHER_INCLUDABLE):
            raise bad_request(f"include may have {' and '.join(INCLUDABLE)}, got {quoted(name)}", "include")
    allows_several = body.parallel_tool_calls is not False
    params = conversations.make_params(
        msgspec.structs.replace(
            body,
            max_tokens=body.max_tokens if body.max_output_tokens is None else body.max_output_tokens,
            response_format=body.response_format or _response_format(body.text),
        )
    )
    grammar = params.grammar
    if grammar is not None and body.response_format is None and grammar.param == "response_format":
        grammar = msgspec.structs.replace(grammar, param="text.format")
    effort = None if body.reasoning is None else body.reasoning.effort
    has_logprobs = body.includes(LOGPROBS) or bool(body.top_logprobs)
    params = msgspec.structs.replace(
        params, grammar=grammar, num_logprobs=(body.top_logprobs or 0) if has_logprobs else None
    )
    return Conversation(
        messages=messages,
        params=params,
        tools=conversations.choose_tools(
            tool_use(body.tools or ()), read_choice(body.tool_choice), allows_several=allows_several
        ),
        template_kwargs=template_kwargs(effort, body.chat_template_kwargs),
        is_thinking_off=turns_thinking_off(effort, body.chat_template_kwargs),
        thinking_budget=checked_budget(body.thinking_token_budget, conversations.model_format),
        allows_parallel_calls=allows_several,
        max_calls=body.max_tool_calls,
        keeps_logprobs=has_logprobs,
        add_special_tokens=bool(body.add_special_tokens),
        truncation=truncation_of(body, params, conversations.context_tokens),
        image_limits=read_limits(body.mm_processor_kwargs),
    )


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    """Returns the format as chats express it. Raises `RequestError` (400)."""
    asked = TextFormat() if text is None else text.format
    if asked.type != "json_schema":
        return None if asked.type == "text" else ResponseFormat(asked.type)
    if asked.schema is UNSET:
        raise bad_request("text.format.schema is required with this type", "text")
    if not asked.name:
        raise bad_request("text.format.name is required with this type", "text")
    return ResponseFormat("json_schema", SchemaFormat(asked.schema, asked.name))
