"""`/api/embed` and its predecessor `/api/embeddings`: Ollama's endpoints for embeddings."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from extras.ollama.body import ModelBody, Text
from extras.ollama.endpoints import Reader, load_ns
from frontend.api.answers.pooled import open_pooled, pooled_reply
from frontend.api.parameters.adapter_names import find_adapter, salt_for
from frontend.api.parameters.sampling import MAX_INT32, Switch
from frontend.http.responses import JsonReply
from frontend.http.stream import WholeReply
from frontend.requests.generation import Generation
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.columns import unpack_float32
from messages.errors import bad_request
from messages.ring.requests import Pooling, SamplingParams, Truncation

Dimensions = Annotated[Annotated[int, Meta(ge=0, le=MAX_INT32)] | None, Meta(description="a whole number, 0 for all")]


class OllamaEmbed(ModelBody, frozen=True, kw_only=True):
    """A longer text is cut unless `truncate` is false."""

    input: Annotated[str | list[str], Meta(description="a string or a list of strings")] = msgspec.field(
        default_factory=list[str]
    )
    truncate: Switch = None
    dimensions: Dimensions = None


class OllamaEmbeddings(ModelBody, frozen=True, kw_only=True):
    prompt: Text = None


class EmbedReply(msgspec.Struct, frozen=True):
    """Spans are whole nanoseconds."""

    model: str
    embeddings: list[Any]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class EmbeddingReply(msgspec.Struct, frozen=True):
    embedding: Any


class EmbedApi:
    def __init__(self, service: Service, reader: Reader):
        self._service = service
        self._reader = reader
        self._embed, self._embeddings = reader.decoder(OllamaEmbed), reader.decoder(OllamaEmbeddings)

    async def embed(self, request: Request) -> WholeReply | JsonReply:
        """Returns one vector per text. Raises `RequestError`."""
        self._service.check_admission(trace_of(request.scope))
        waited_ns = load_ns(request)
        begin_ns = time.monotonic_ns() - waited_ns
        asked, body = await self._reader.read(request, self._embed)
        texts = [body.input] * bool(body.input) if isinstance(body.input, str) else body.input
        if not texts:
            return JsonReply(EmbedReply(asked.model, []))

        def content(entries: Sequence[Generation]) -> EmbedReply:
            num_tokens = sum(entry.ended.usage.prompt_tokens for entry in entries)
            vectors = [_vector(entry) for entry in entries]
            return EmbedReply(asked.model, vectors, time.monotonic_ns() - begin_ns, waited_ns, num_tokens)

        pooling = Pooling("embed", dimensions=body.dimensions or 0)
        return self._reply(request, body, texts, pooling, content, is_cut=body.truncate is not False)

    async def embeddings(self, request: Request) -> WholeReply | JsonReply:
        """Returns the vector of one text. Raises `RequestError`."""
        self._service.check_admission(trace_of(request.scope))
        _, body = await self._reader.read(request, self._embeddings)
        if not body.prompt:
            return JsonReply(EmbeddingReply([]))

        def content(entries: Sequence[Generation]) -> EmbeddingReply:
            return EmbeddingReply(_vector(entries[0]))

        return self._reply(request, body, [body.prompt], Pooling("embed"), content, is_cut=True)

    def _reply(
        self,
        request: Request,
        body: ModelBody,
        texts: Sequence[str],
        pooling: Pooling,
        content: Callable[[Sequence[Generation]], Any],
        *,
        is_cut: bool,
    ) -> WholeReply:
        for index, text in enumerate(texts):
            if not text:
                raise bad_request(f"input[{index}] must not be empty", "input")
        facts = self._service.config.facts
        adapter = find_adapter(facts, body.model)
        params = SamplingParams(max_tokens=0, pooling=pooling, adapter=adapter, cache_salt=salt_for(adapter, ""))
        truncation = Truncation(facts.max_model_len, "right") if is_cut else None
        prompts = [PromptRequest(text, params, truncation=truncation) for text in texts]
        entries = open_pooled(self._service, prompts, trace_of(request.scope))
        return pooled_reply(self._service, entries, lambda: content(entries))


def _vector(entry: Generation) -> Any:
    assert entry.pooled is not None, f"uid {entry.uid} has no vector"
    return unpack_float32(entry.pooled.values).tolist()
