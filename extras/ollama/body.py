"""The bodies of `/api/chat` and `/api/generate`, and their conversion to a conversation or a raw prompt."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Raw

from frontend.api.answers.chat_messages import MAX_MESSAGES, ChatMessage
from frontend.api.answers.conversation import Conversation, Conversations
from frontend.api.answers.thinking import template_kwargs
from frontend.api.answers.tools import TOOLS_TEXT, check_tools
from frontend.api.parameters.foreign_fields import NEUTRAL, RENAMED
from frontend.api.parameters.generation_body import ModelFields
from frontend.api.parameters.grammar import ResponseFormat, SchemaFormat
from frontend.api.parameters.sampling import MAX_INT32, NumLogprobs, Switch
from frontend.http.body import BodyDecoder
from frontend.http.field_names import NameRules
from messages.errors import bad_request
from messages.ring.requests import THINKING_SWITCHES, SamplingParams

REFUSED: dict[str, tuple[Any, ...]] = {
    "images": ([],),
    "template": ("",),
    "context": ([],),
    **dict.fromkeys(("width", "height", "steps"), (0,)),
}
"""Fields that would change the answer, each with the values that have no effect."""

OPTION_RULES = NameRules(
    refused={"mirostat": (0,)},
    ignored=(
        *("numa", "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all", "vocab_only"),
        *("use_mmap", "use_mlock", "embedding_only", "num_thread", "num_keep", "tfs_z", "repeat_last_n"),
        *("mirostat_tau", "mirostat_eta", "penalize_newline", "draft_num_predict"),
    ),
    renamed=RENAMED,
    neutral=NEUTRAL,
)
"""Options that say how a model is loaded have no effect: the server's flags decide that."""

OPTIONS = BodyDecoder(ModelFields, OPTION_RULES)
NUM_PREDICT_TEXT = f"a whole number up to {MAX_INT32}; below 1 means what the context leaves"
FORMAT_TEXT = '"json" or a JSON schema (an object)'
KEEP_ALIVE_TEXT = "a number of seconds, or a duration such as 5m"
THINK_TEXT = 'true, false, "low", "medium" or "high"'

Think = Literal["low", "medium", "high", "max"]
KeepAlive = Annotated[float | str | None, Meta(description=KEEP_ALIVE_TEXT)]
Text = Annotated[str | None, Meta(description="a string")]


class EarlierCall(msgspec.Struct, frozen=True):
    function: dict[str, Any]
    id: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`tool_name`: the tool whose result the message has."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


MESSAGES_TEXT = (
    f"a list of at most {MAX_MESSAGES} messages, each with a role and a content (a string), which may have thinking, "
    "tool_calls and tool_name"
)


class ModelBody(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[str, Meta(description="a string, one of the names in /api/tags")]
    options: Annotated[dict[str, Raw] | None, Meta(description="an object")] = None
    keep_alive: KeepAlive = None


class AnswerBody(ModelBody, frozen=True, kw_only=True):
    """The fields of both endpoints that generate."""

    stream: Switch = None
    format: Annotated[dict[str, Any] | Literal["", "json"] | None, Meta(description=FORMAT_TEXT)] = None
    think: Annotated[bool | Think | None, Meta(description=THINK_TEXT)] = None
    logprobs: Switch = None
    top_logprobs: NumLogprobs = None


class OllamaChat(AnswerBody, frozen=True, kw_only=True):
    messages: Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES, description=MESSAGES_TEXT)] = []
    tools: Annotated[list[Any] | None, Meta(description=TOOLS_TEXT)] = None


class OllamaPrompt(AnswerBody, frozen=True, kw_only=True):
    prompt: Text = None
    system: Text = None
    suffix: Text = None
    raw: Switch = None


def read_params(body: AnswerBody, conversations: Conversations) -> SamplingParams:
    """Returns the sampling parameters of a body. Raises `RequestError` (400), which names the option at fault."""
    options = {name: raw for name, raw in (body.options or {}).items() if bytes(raw) != b"null"}
    num_predict = options.pop("num_predict", None)
    fields = msgspec.structs.replace(OPTIONS.decode(msgspec.json.encode(options)), model=body.model)
    if num_predict is not None:
        fields = msgspec.structs.replace(fields, max_tokens=_num_tokens(num_predict))
    if body.format:
        is_schema = isinstance(body.format, dict)
        schema = SchemaFormat(Raw(msgspec.json.encode(_closed(body.format))), "format") if is_schema else None
        wanted = ResponseFormat("json_schema" if is_schema else "json_object", schema)
        fields = msgspec.structs.replace(fields, response_format=wanted)
    params = conversations.make_params(fields)
    if params.grammar is not None:
        params = msgspec.structs.replace(params, grammar=msgspec.structs.replace(params.grammar, param="format"))
    return msgspec.structs.replace(params, num_logprobs=(body.top_logprobs or 0) if body.logprobs else None)


def _closed(schema: Any) -> Any:
    """Returns the schema. As in Ollama, objects with `properties` may have no others unless it allows them."""
    if isinstance(schema, list):
        return [_closed(entry) for entry in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in cast("dict[str, Any]", schema).items()}
    return {"additionalProperties": False, **closed} if isinstance(closed.get("properties"), dict) else closed


def _num_tokens(given: Raw) -> int | None:
    """Returns the most tokens; as in Ollama, there is no limit below 1. Raises `RequestError` (400)."""
    try:
        number = msgspec.json.decode(given, type=Annotated[int, Meta(le=MAX_INT32)])
    except msgspec.ValidationError:
        got = bytes(given).decode()[:60]
        raise bad_request(f"num_predict must be {NUM_PREDICT_TEXT}, got {got}", "num_predict") from None
    return number if number > 0 else None


def chat_of(body: OllamaChat, conversations: Conversations) -> Conversation:
    """Converts the body to a conversation. Raises `RequestError` (400)."""
    tools = conversations.choose_tools(check_tools(body.tools), "auto", allows_several=True)
    return make_conversation(body, _read_messages(body.messages), conversations, tools=tools)


def prompt_of(body: OllamaPrompt, conversations: Conversations) -> Conversation:
    """Converts a prompt that is not raw to a conversation of one turn. Raises `RequestError` (400)."""
    texts = (("system", body.system), ("user", body.prompt))
    messages = [ChatMessage(role=role, content=text) for role, text in texts if text]
    return make_conversation(body, messages, conversations)


def make_conversation(
    body: AnswerBody, messages: Sequence[ChatMessage], conversations: Conversations, **fields: Any
) -> Conversation:
    switches: dict[str, Any] = {} if body.think is None else dict.fromkeys(THINKING_SWITCHES, bool(body.think))
    last = messages[-1]
    return Conversation(
        messages=messages,
        params=read_params(body, conversations),
        template_kwargs=template_kwargs(body.think if isinstance(body.think, str) else None, switches),
        is_thinking_off=body.think is False,
        continue_final_message=last.role == "assistant" and bool(last.text) and not last.tool_calls,
        **fields,
    )


def _read_messages(given: Sequence[OllamaMessage]) -> list[ChatMessage]:
    """Returns the messages; calls without an id, and their results in the same order, get one."""
    messages: list[ChatMessage] = []
    waiting: list[str] = []
    num_calls = 0
    for index, message in enumerate(given):
        if message.images:
            raise bad_request(f"messages[{index}].images: the model reads text only", "messages", "not_supported")
        calls: list[dict[str, Any]] = []
        for call in message.tool_calls or ():
            num_calls += 1
            waiting.append(call.id or f"call_{num_calls}")
            calls.append({"id": waiting[-1], "type": "function", "function": call.function})
        call_id = message.tool_call_id
        if message.role == "tool":
            call_id = call_id or (waiting[0] if waiting else "call_0")
            waiting = [other for other in waiting if other != call_id]
        messages.append(
            ChatMessage(
                role=message.role,
                content=message.content or ("" if not calls else None),
                reasoning_content=message.thinking,
                tool_calls=calls or None,
                tool_call_id=call_id,
                name=message.tool_name,
            )
        )
    return messages
