"""The bodies of `/api/chat` and `/api/generate`, and their conversion to a conversation or a raw prompt."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Raw

from frontend.api.answers.chat_messages import MAX_MESSAGES, ChatMessage, ContentPart, image_content
from frontend.api.answers.conversation import Conversation, Conversations
from frontend.api.answers.thinking import template_kwargs
from frontend.api.answers.tools import TOOLS_TEXT, check_tools
from frontend.api.parameters.foreign_fields import NEUTRAL, RENAMED
from frontend.api.parameters.generation_body import ModelFields
from frontend.api.parameters.grammar import ResponseFormat, SchemaFormat
from frontend.api.parameters.sampling import MAX_INT32, NumLogprobs, Switch
from frontend.http.body import BodyDecoder
from frontend.http.field_names import NameRules
from frontend.images.parts import MAX_LISTED, ImageList, ImagePart, listed_images
from messages.errors import bad_request
from messages.ring.requests import THINKING_SWITCHES, SamplingParams, Truncation

REFUSED: dict[str, tuple[Any, ...]] = {
    "images": ([],),
    "template": ("",),
    "context": ([],),
    **dict.fromkeys(("width", "height", "steps"), (0,)),
}
"""Fields that would change the answer, each with the values that have no effect."""

NUM_PREDICT_TEXT = f"a whole number up to {MAX_INT32}; below 1 means what the context leaves"
FORMAT_TEXT = '"json" or a JSON schema (an object)'
MAX_NUMBER_BYTES = 64
MAX_EXACT = 1 << 53
THINK_TEXT = 'true, false, "low", "medium" or "high"'
ROLES = ("system", "developer", "user", "assistant", "tool", "control")
"""Ollama's, OpenAI's name for the first, and the one by which Granite's template turns reasoning on."""

NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
DURATION = rf"^[+-]?(?:{NUMBER}|(?:{NUMBER}(?:ns|us|µs|μs|ms|s|m|h))+)\Z"
Duration = Annotated[str, Meta(max_length=32, pattern=DURATION)]
KEEP_ALIVE_TEXT = "a number of seconds, or a duration such as 5m"

PART_OF_CONTEXT = 8
"""The part of the context that a truncated prompt leaves to a long answer is 1 / this number."""

Think = Literal["low", "medium", "high", "max"]
KeepAlive = Annotated[float | Duration | None, Meta(description=KEEP_ALIVE_TEXT)]
Text = Annotated[str | None, Meta(description="a string")]
Whole = Annotated[Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32)] | None, Meta(description="a whole number")]
Number = Annotated[float | None, Meta(description="a number")]
NumTokens = Annotated[
    Annotated[int, Meta(ge=0, le=MAX_INT32)] | None, Meta(description=f"a whole number from 0 to {MAX_INT32}")
]
NumPredict = Annotated[Annotated[int, Meta(le=MAX_INT32)] | None, Meta(description=NUM_PREDICT_TEXT)]


class OllamaOptions(ModelFields, frozen=True, kw_only=True):
    """The options that have an effect here."""

    num_predict: NumPredict = None


UNUSED: tuple[tuple[Any, str], ...] = (
    (NumTokens, "num_ctx"),
    (Whole, "num_batch num_gpu main_gpu num_thread num_keep repeat_last_n draft_num_predict"),
    (Number, "tfs_z mirostat_tau mirostat_eta"),
    (Switch, "numa low_vram f16_kv logits_all vocab_only use_mmap use_mlock embedding_only penalize_newline"),
)
"""The types and names of options without effect: the server's flags say how a model is loaded."""

UNUSED_FIELDS = [(name, kind, None) for kind, names in UNUSED for name in names.split()]
ALL_OPTIONS = msgspec.defstruct("AllOptions", UNUSED_FIELDS, bases=(OllamaOptions,), frozen=True, kw_only=True)
OPTIONS = BodyDecoder(
    cast("type[OllamaOptions]", ALL_OPTIONS), NameRules(refused={"mirostat": (0,)}, renamed=RENAMED, neutral=NEUTRAL)
)


class EarlierCall(msgspec.Struct, frozen=True):
    function: dict[str, Any]
    id: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`tool_name`: the tool whose result the message has."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


MESSAGES_TEXT = (
    f"a list of at most {MAX_MESSAGES} messages, each with a role and a content (a string), which may have images (a "
    "list of base64), thinking, tool_calls and tool_name"
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
    truncate: Switch = None
    logprobs: Switch = None
    top_logprobs: NumLogprobs = None


class OllamaChat(AnswerBody, frozen=True, kw_only=True):
    messages: Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES, description=MESSAGES_TEXT)] = []
    tools: Annotated[list[Any] | None, Meta(description=TOOLS_TEXT)] = None


class OllamaPrompt(AnswerBody, frozen=True, kw_only=True):
    prompt: Text = None
    system: Text = None
    suffix: Text = None
    images: ImageList = None
    raw: Switch = None


def check_body(body: AnswerBody) -> None:
    """Raises `RequestError` (400) for options that are not used because there is no prompt, as for others."""
    _read_options(body)


def unloads(keep_alive: float | str | None) -> bool:
    """True if a `keep_alive` without a prompt asks the server to unload the model."""
    return keep_alive == 0 or (isinstance(keep_alive, str) and not set("123456789") & set(keep_alive))


def _read_options(body: AnswerBody) -> OllamaOptions:
    return OPTIONS.decode(msgspec.json.encode({name: _whole(raw) for name, raw in (body.options or {}).items()}))


def _whole(raw: Raw) -> Raw:
    """Returns a number without a fraction as a whole number: Ollama's clients write 40.0 for 40."""
    if memoryview(raw).nbytes > MAX_NUMBER_BYTES:
        return raw
    try:
        number = msgspec.json.decode(raw, type=float)
    except msgspec.DecodeError:
        return raw
    return Raw(b"%d" % number) if number.is_integer() and abs(number) < MAX_EXACT else raw


def read_params(body: AnswerBody, conversations: Conversations) -> SamplingParams:
    """Returns the sampling parameters of a body. Raises `RequestError` (400), which names the option at fault."""
    options = _read_options(body)
    num_predict = options.num_predict
    fields = msgspec.structs.replace(options, model=body.model)
    if num_predict is not None:
        fields = msgspec.structs.replace(fields, max_tokens=num_predict if num_predict > 0 else None)
    if body.format:
        is_schema = isinstance(body.format, dict)
        schema = SchemaFormat(Raw(msgspec.json.encode(body.format)), "format") if is_schema else None
        requested = ResponseFormat("json_schema" if is_schema else "json_object", schema)
        fields = msgspec.structs.replace(fields, response_format=requested)
    params = conversations.make_params(fields)
    if params.grammar is not None:
        params = msgspec.structs.replace(params, grammar=msgspec.structs.replace(params.grammar, param="format"))
    return msgspec.structs.replace(params, num_logprobs=(body.top_logprobs or 0) if body.logprobs else None)


def truncation_of(body: AnswerBody, params: SamplingParams, conversations: Conversations) -> Truncation | None:
    """Returns how a prompt is cut that does not fit, `None` if the client wants an error."""
    if body.truncate is False:
        return None
    num_left = min(params.max_tokens, max(1, conversations.context_tokens // PART_OF_CONTEXT))
    return Truncation(conversations.context_tokens - num_left, "left", drops_messages=True)


def chat_of(body: OllamaChat, conversations: Conversations) -> Conversation:
    """Converts the body to a conversation. Raises `RequestError` (400)."""
    tools = conversations.choose_tools(check_tools(body.tools), "auto", allows_several=True)
    return make_conversation(body, _read_messages(body.messages), conversations, tools=tools)


def prompt_of(body: OllamaPrompt, conversations: Conversations) -> Conversation:
    """Converts a prompt that is not raw to a conversation of one turn. Raises `RequestError` (400)."""
    contents = (("system", body.system), ("user", _content(body.prompt, listed_images(body.images))))
    messages = [ChatMessage(role=role, content=content) for role, content in contents if content]
    return make_conversation(body, messages, conversations)


def _content(text: str | None, images: Sequence[ImagePart]) -> str | list[ContentPart]:
    """Returns the content of a message, images first, as Ollama shows them to models."""
    texts = [ContentPart("text", text)] if text else []
    return [*map(image_content, images), *texts] if images else text or ""


def make_conversation(
    body: AnswerBody, messages: Sequence[ChatMessage], conversations: Conversations, **fields: Any
) -> Conversation:
    switches: dict[str, Any] = {} if body.think is None else dict.fromkeys(THINKING_SWITCHES, bool(body.think))
    last, params = messages[-1], read_params(body, conversations)
    return Conversation(
        messages=messages,
        params=params,
        truncation=truncation_of(body, params, conversations),
        template_kwargs=template_kwargs(body.think if isinstance(body.think, str) else None, switches),
        is_thinking_off=body.think is False,
        continue_final_message=last.role == "assistant" and bool(last.text) and not last.tool_calls,
        **fields,
    )


def _read_messages(provided: Sequence[OllamaMessage]) -> list[ChatMessage]:
    """Returns the messages; calls without an id, and their results in the same order, get one."""
    messages: list[ChatMessage] = []
    waiting: list[str] = []
    num_calls = 0
    if sum(len(message.images or ()) for message in provided) > MAX_LISTED:
        raise bad_request(f"messages may have at most {MAX_LISTED} images", "messages", "too_many_images")
    for index, message in enumerate(provided):
        if message.role.lower() not in ROLES:
            text = f"messages[{index}].role must be one of {', '.join(ROLES)}, got {message.role[:60]!r}"
            raise bad_request(text, "messages")
        calls: list[dict[str, Any]] = []
        for call in message.tool_calls or ():
            num_calls += 1
            waiting.append(call.id or f"call_{num_calls}")
            calls.append({"id": waiting[-1], "type": "function", "function": call.function})
        call_id, role = message.tool_call_id, message.role.lower()
        if role == "tool":
            call_id = call_id or (waiting[0] if waiting else "call_0")
            waiting = [other for other in waiting if other != call_id]
        messages.append(
            ChatMessage(
                role=role,
                content=_content(message.content, listed_images(message.images, f"messages[{index}].images"))
                or ("" if not calls else None),
                reasoning_content=message.thinking,
                tool_calls=calls or None,
                tool_call_id=call_id,
                name=message.tool_name,
            )
        )
    return messages
