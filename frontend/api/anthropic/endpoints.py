"""`POST /v1/messages` and `/v1/messages/count_tokens`, and their entries in the route table."""

import secrets
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.answers.conversation import Conversations
from frontend.api.anthropic.body import IGNORED, REFUSED, CountBody, MessagesBody, make_conversation
from frontend.api.anthropic.errors import ANTHROPIC_ERRORS
from frontend.api.anthropic.reply import EVENTS, MessageAnswer, MessageEvents, MessageReply
from frontend.api.parameters.generation_body import RequestReader, check_stream, name_rules, shows_progress
from frontend.http.endpoint import Endpoint, Parameter
from frontend.http.field_names import UnknownFields
from frontend.http.responses import JsonReply
from frontend.http.stream import EventStream, OpenStreams, WholeReply
from frontend.requests.trace import trace_of
from frontend.service import Service

USER = {"role": "user", "content": "How far is the moon?"}
TOOL: dict[str, Any] = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}

ID_HEADER = "request-id"
"""Anthropic's clients show it as `_request_id`, and as the `request_id` of errors."""

VERSION = Parameter("header", "anthropic-version", Annotated[str, Meta(max_length=64)], "Any version is accepted.")

_MESSAGES = partial(
    Endpoint,
    tag="Anthropic",
    errors=(404,),
    error_form=ANTHROPIC_ERRORS,
    second_id_header=ID_HEADER,
    parameters=(VERSION,),
)


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class MessagesApi:
    def __init__(self, service: Service, streams: OpenStreams, unknown: UnknownFields, conversations: Conversations):
        self._service = service
        self._streams = streams
        self._conversations = conversations
        rules = name_rules(REFUSED, IGNORED)
        self._reader = RequestReader(service, MessagesBody, rules, unknown, (check_stream,))
        self._count_reader = RequestReader(service, CountBody, rules, unknown, (check_stream,))

    async def create(self, request: Request) -> EventStream | WholeReply:
        """Opens the answer. Raises `RequestError`; if another process refuses the request, the response raises it."""
        body = await self._reader.read(request)
        (blocks,) = await self._conversations.open(
            make_conversation(body, self._conversations),
            trace_of(request.scope),
            is_streamed=bool(body.stream),
            timeout_s=body.timeout_s,
        )
        answer = MessageAnswer(f"msg_{secrets.token_hex(12)}", self._reader.model_name(body), blocks)
        if body.stream:
            choices, is_shown = [blocks.generation], shows_progress(body.stream_options)
            return EventStream(self._service, self._streams, choices, MessageEvents(answer), shows_progress=is_shown)
        return WholeReply(self._service, [blocks.generation], answer.whole)

    async def count_tokens(self, request: Request) -> JsonReply:
        """Raises `RequestError`."""
        body = await self._count_reader.read(request)
        conversation = make_conversation(body, self._conversations)
        counted = await self._conversations.count(conversation, trace_of(request.scope))
        return JsonReply(TokenCount(counted.input_tokens))


def messaging(api: MessagesApi) -> list[Endpoint]:
    """Returns the endpoints of Anthropic's API."""
    return [
        _MESSAGES(
            "/v1/messages",
            api.create,
            "Continue a conversation",
            MessageReply,
            body=MessagesBody,
            events=EVENTS,
            examples={
                "one": {"max_tokens": 64, "messages": [USER], "system": "Be brief."},
                "a tool, streamed": {
                    "max_tokens": 64,
                    "messages": [USER],
                    "stream": True,
                    "tools": [TOOL],
                    "tool_choice": {"type": "none"},
                },
            },
        ),
        _MESSAGES(
            "/v1/messages/count_tokens",
            api.count_tokens,
            "How many tokens the prompt of a message has",
            TokenCount,
            body=CountBody,
            examples={"one": {"messages": [USER]}},
        ),
    ]
