"""`/api/chat` and `/api/generate`: Ollama's endpoints that generate."""

from typing import Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from extras.ollama import body as bodies
from extras.ollama.reply import Answer, AnswerLines, DoneReason, Piece, Render, chat_line, now, prompt_line
from frontend.api.answers.answer_blocks import AnswerBlocks
from frontend.api.answers.chat_messages import refuse_images
from frontend.api.answers.conversation import Conversation, Conversations
from frontend.api.parameters.generation_body import check_model
from frontend.http.body import BodyDecoder
from frontend.http.field_names import NameRules, UnknownFields
from frontend.http.responses import JsonReply
from frontend.http.stream import EventStream, OpenStreams, WholeReply, take_images
from frontend.images.parts import listed_images
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.ring.infill import Infill

B = TypeVar("B", bound=bodies.ModelBody)

LATEST = ":latest"
"""The tag that clients add to names without one."""

MAX_DIGITS = 15


class Asked(NamedTuple, Generic[B]):
    """A body with the name of the model as the client writes it, and `served` with the name as it is served."""

    body: B
    served: B


class Reader:
    """Reads bodies; any media type is accepted, for some clients send none."""

    def __init__(self, service: Service, unknown: UnknownFields):
        self._service = service
        self._rules = NameRules(refused=bodies.REFUSED, ignored=("shift",), renamed={"name": "model"})
        self._unknown = unknown

    def decoder(self, struct: type[B]) -> BodyDecoder[B]:
        max_bytes = self._service.config.http.max_body_bytes
        return BodyDecoder(struct, self._rules, self._unknown, max_bytes=max_bytes, needs_type=False)

    async def read(self, request: Request, decoder: BodyDecoder[B]) -> Asked[B]:
        """Raises `RequestError`."""
        body = (await decoder.receive(request)).fields
        facts, name = self._service.config.facts, body.model
        served = name if name in facts.served_names else name.removesuffix(LATEST)
        check_model(facts, served)
        return Asked(body, msgspec.structs.replace(body, model=served))


class AnswerApi:
    def __init__(self, service: Service, streams: OpenStreams, reader: Reader, conversations: Conversations):
        self._service = service
        self._streams = streams
        self._reader = reader
        self._conversations = conversations
        self._chats = reader.decoder(bodies.OllamaChat)
        self._prompts = reader.decoder(bodies.OllamaPrompt)

    async def chat(self, request: Request) -> EventStream | WholeReply | JsonReply:
        """Raises `RequestError`; if another process refuses the request, the response raises it."""
        self._service.check_admission(trace_of(request.scope))
        asked, body = await self._reader.read(request, self._chats)
        bodies.check_body(body)
        if not body.messages:
            return _loaded(asked, chat_line)
        blocks = await self._open(request, body, bodies.chat_of(body, self._conversations))
        return self._answer(request, asked, blocks, chat_line)

    async def generate(self, request: Request) -> EventStream | WholeReply | JsonReply:
        """Same as `chat`, for one prompt."""
        self._service.check_admission(trace_of(request.scope))
        asked, body = await self._reader.read(request, self._prompts)
        bodies.check_body(body)
        if not body.prompt and not body.suffix and not body.images:
            return _loaded(asked, prompt_line)
        blocks = (
            await self._open_raw(request, body, body.prompt or "")
            if body.raw or body.suffix
            else await self._open(request, body, bodies.prompt_of(body, self._conversations))
        )
        return self._answer(request, asked, blocks, prompt_line)

    async def _open(
        self, request: Request, body: bodies.OllamaChat | bodies.OllamaPrompt, conversation: Conversation
    ) -> AnswerBlocks:
        trace, is_streamed = trace_of(request.scope), body.stream is not False
        return (await self._conversations.open(conversation, trace, is_streamed=is_streamed, timeout_s=None))[0]

    async def _open_raw(self, request: Request, body: bodies.OllamaPrompt, prompt: str) -> AnswerBlocks:
        """Opens the answer to a prompt that no chat template changes."""
        trace, images = trace_of(request.scope), listed_images(body.images)
        if body.suffix:
            refuse_images(images)
        params = bodies.read_params(body, self._conversations)
        infill = Infill(body.suffix, "suffix") if body.suffix else None
        truncation = None if infill else bodies.truncation_of(body, params, self._conversations)
        taken = await take_images(self._service, images, trace)
        requested = PromptRequest(prompt, params, infill=infill, truncation=truncation, images=taken)
        is_streamed = body.stream is not False
        generation = self._service.open(requested, trace, is_streamed=is_streamed, timeout_s=None)
        return AnswerBlocks(generation, None)

    def _answer(
        self, request: Request, asked: bodies.OllamaChat | bodies.OllamaPrompt, blocks: AnswerBlocks, render: Render
    ) -> EventStream | WholeReply:
        answer = Answer(asked.model, blocks, render, load_ns(request))
        if asked.stream is False:
            return WholeReply(self._service, [blocks.generation], answer.whole)
        return EventStream(self._service, self._streams, [blocks.generation], AnswerLines(answer))


def load_ns(request: Request) -> int:
    """Returns how long the request has waited for its model, in nanoseconds, as a server of several models notes it."""
    text = request.headers.get("x-model-load-ns", "")[:MAX_DIGITS]
    return int(text) if text.isdecimal() else 0


def _loaded(body: bodies.ModelBody, render: Render) -> JsonReply:
    """Returns the reply to a body without a prompt, by which clients load a model or unload it."""
    reason: DoneReason = "unload" if bodies.unloads(body.keep_alive) else "load"
    return JsonReply(render(Piece(), {"model": body.model, "created_at": now(), "done": True, "done_reason": reason}))
