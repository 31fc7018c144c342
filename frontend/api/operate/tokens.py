"""`POST /tokenize` and `/detokenize`: text or a conversation to token ids, and token ids to text."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.answers.chat_messages import MESSAGES_TEXT, Messages, make_chat
from frontend.api.answers.conversation import adapt_messages
from frontend.api.answers.tools import NO_TOOLS, TOOLS_TEXT, ToolUse, check_tools
from frontend.api.parameters.generation_body import check_model
from frontend.api.parameters.sampling import TOKEN_IDS_TEXT, Switch, TokenId
from frontend.http.body import BodyDecoder
from frontend.http.field_names import NameRules, UnknownFields
from frontend.http.responses import JsonReply
from frontend.http.stream import take_images
from frontend.images.parts import LIMITS_TEXT, ImagePart, read_limits
from frontend.parsing.model_format import ModelFormat
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.columns import pack_int32, unpack_int32
from messages.errors import bad_request
from messages.ring.requests import EncodeMsg

REFUSED: dict[str, tuple[Any, ...]] = {"chat_template": ()}
"""Parameters of vLLM that are not supported, each with the values that have no effect."""

ModelName = Annotated[str | None, Meta(description="a name of the served model")]


class ChatFields(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a chat, and how a prompt is made of text or messages."""

    messages: Annotated[Messages | None, Meta(description=MESSAGES_TEXT)] = None
    add_special_tokens: Switch = None
    add_generation_prompt: Switch = None
    continue_final_message: Switch = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="an object")] = None


class TokenizeBody(ChatFields, frozen=True, kw_only=True):
    model: ModelName = None
    prompt: Annotated[str | None, Meta(description="a string")] = None
    return_token_strs: Switch = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, Meta(description=LIMITS_TEXT)] = None
    tools: Annotated[list[dict[str, Any]] | None, Meta(description=TOOLS_TEXT)] = None


class TokenizeReply(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: tuple[str, ...] | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelName = None
    tokens: Annotated[list[TokenId], Meta(description=TOKEN_IDS_TEXT)]


class DetokenizeReply(msgspec.Struct, frozen=True):
    prompt: str


class TokensApi:
    def __init__(self, service: Service, unknown: UnknownFields, model_format: ModelFormat):
        self._service = service
        self._model_format = model_format
        max_bytes = service.config.http.max_body_bytes
        self._tokenize_decoder = BodyDecoder(TokenizeBody, NameRules(REFUSED), unknown, max_bytes=max_bytes)
        self._detokenize_decoder = BodyDecoder(DetokenizeBody, unknown=unknown, max_bytes=max_bytes)

    async def tokenize(self, request: Request) -> JsonReply:
        """Raises `RequestError`."""
        body = (await self._tokenize_decoder.receive(request)).fields
        check_model(self._service.config.facts, body.model)
        question, images = question_of(body, body.prompt, check_tools(body.tools), self._model_format)
        limits = read_limits(body.mm_processor_kwargs)
        images = [image._replace(limits=limits) for image in images]
        taken = await take_images(self._service, images, trace_of(request.scope))
        answer = await self._service.queries.encode(
            msgspec.structs.replace(question, wants_token_strs=bool(body.return_token_strs), images=taken)
        )
        tokens = unpack_int32(answer.token_ids).tolist()
        token_strs = answer.token_strs if body.return_token_strs else None
        return JsonReply(TokenizeReply(len(tokens), self._service.config.facts.max_model_len, tokens, token_strs))

    async def detokenize(self, request: Request) -> JsonReply:
        """Raises `RequestError`."""
        body = (await self._detokenize_decoder.receive(request)).fields
        facts = self._service.config.facts
        check_model(facts, body.model)
        for index, token_id in enumerate(body.tokens):
            if token_id >= facts.vocab_size:
                raise bad_request(
                    f"tokens must be token ids below {facts.vocab_size}, the size of the vocabulary, got {token_id} "
                    f"(at tokens[{index}])",
                    "tokens",
                )
        return JsonReply(DetokenizeReply(await self._service.queries.decode(pack_int32(body.tokens))))


def question_of(
    body: ChatFields, prompt: str | None, tools: ToolUse = NO_TOOLS, model_format: ModelFormat | None = None
) -> tuple[EncodeMsg, Sequence[ImagePart]]:
    """Returns the message for the tokenizer, without a uid, and its images. Raises `RequestError` (400)."""
    if (prompt is None) == (body.messages is None):
        raise bad_request("give either prompt or messages", "prompt")
    chat, images = None, ()
    if body.messages is not None:
        listed = {} if model_format is not None and model_format.is_generic else tools.template_kwargs
        chat, images = make_chat(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=(body.chat_template_kwargs or {}) | listed,
            adapt=None if model_format is None else partial(adapt_messages, tools=tools, model_format=model_format),
        )
    adds_special_tokens = chat is None if body.add_special_tokens is None else body.add_special_tokens
    return EncodeMsg(0, prompt, chat, adds_special_tokens), images
