"""The fields that all pooled endpoints share, and how their bodies become requests and replies."""

import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.parameters.foreign_fields import FOREIGN
from frontend.api.parameters.generation_body import REQUEST_ID_TEXT, NumKept, RequestId, Side, check_model
from frontend.api.parameters.sampling import INT64_TEXT, Int64, Salt, Seconds
from frontend.errors import UnavailableError
from frontend.http.body import BodyDecoder, read_body
from frontend.http.field_names import NameRules, UnknownFields
from frontend.http.stream import WholeReply
from frontend.requests.generation import Generation
from frontend.requests.prompt_request import Prompt, PromptRequest
from frontend.requests.trace import RequestTrace, trace_of
from frontend.service import Service
from messages.columns import unpack_float32
from messages.config.pooling import PoolingFacts
from messages.errors import bad_request
from messages.ring.requests import Pooling, SamplingParams, Truncation

IGNORED = (
    *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_options", "max_tokens_per_doc"),
    *("embed_dtype", "endianness", "late_chunking", "max_chunks_per_doc", "add_special_tokens"),
)
"""Fields of other servers' and clients' bodies that change nothing here."""

REFUSED: dict[str, tuple[Any, ...]] = {
    "mm_processor_kwargs": ({},),
    "images": ([],),
    "embedding_types": (["float"],),
    "output_dtype": ("float",),
    "embedding_type": ("float",),
}
"""Fields that would change the answer, with the values that do not."""

log = logging.getLogger("sluice.frontend")

Content = Callable[[Sequence[Generation]], Any]
"""Makes the document of a reply from the requests, which have ended."""


class PooledFields(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[str | None, Meta(description="a string, one of the names in /v1/models")] = None
    truncate_prompt_tokens: NumKept = None
    truncation_side: Side = None
    request_id: Annotated[RequestId | None, Meta(description=REQUEST_ID_TEXT)] = None
    priority: Annotated[Int64 | None, Meta(description=INT64_TEXT)] = None
    cache_salt: Annotated[Salt | None, Meta(description="a string of 1 to 128 characters")] = None
    timeout_s: Annotated[Seconds | None, Meta(description="a number of seconds above 0")] = None


class PooledUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


T = TypeVar("T", bound=PooledFields)


class PooledReader(Generic[T]):
    """Reads the bodies of one endpoint, of type `struct`; `renamed` are other servers' names for its fields."""

    def __init__(self, service: Service, struct: type[T], unknown: UnknownFields, renamed: dict[str, str] | None = None):
        self._service = service
        self._decoder = BodyDecoder(struct, NameRules(REFUSED, IGNORED, renamed or {}, FOREIGN), unknown)
        self._max_body_bytes = int(service.config.http.max_body_mb * 2**20)

    async def read(self, request: Request) -> T:
        """Returns the body; the trace gets its request id. Raises `RequestError`."""
        self._service.check_admission()
        body = self._decoder.decode(await read_body(request, self._max_body_bytes))
        check_model(self._service.config.facts, body.model)
        trace = trace_of(request.scope)
        trace.request_id = body.request_id or trace.request_id
        return body


class PooledCalls:
    """Makes and opens the requests of bodies, each for one result of its prompt."""

    def __init__(self, service: Service):
        self._service = service
        facts = service.config.facts
        self.pooling = facts.pooling or PoolingFacts()
        self._max_model_len = facts.max_model_len
        self._served_name = facts.served_names[0]
        self._has_warned = False

    def model_name(self, body: PooledFields) -> str:
        """Returns the model's name as the client spells it."""
        return body.model or self._served_name

    def embedding(
        self, dimensions: int | None, normalize: bool | None, kind: Literal["embed", "token_embed"] = "embed"
    ) -> Pooling:
        """Returns what requests a vector. Raises `RequestError` (400) if the model has none."""
        facts = self.pooling
        if facts.kind == "classify":
            raise bad_request(
                "this model has a classification head, it gives no embeddings: /classify, /v1/score and /v1/rerank "
                "use the head",
                "model",
                "not_supported",
            )
        if facts.kind is None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "embeddings of a model whose files describe none: the normalized hidden state of the last token "
                "(said once)"
            )
        normalizes = True if facts.kind is None and normalize is None else normalize
        return Pooling(kind, dimensions=dimensions or 0, normalizes=normalizes)

    def classification(self) -> Pooling:
        """Returns what requests the logits of the classification head. Raises `RequestError` (400) without one."""
        if self.pooling.kind != "classify":
            raise bad_request("this model has no classification head", "model", "not_supported")
        return Pooling("classify")

    def request(self, body: PooledFields, prompt: Prompt, pooling: Pooling, text_pair: str | None = None) -> PromptRequest:
        """Returns the request for one result. Raises `RequestError` (400)."""
        facts = self.pooling
        pooling = msgspec.structs.replace(pooling, way=facts.pooling, is_whole=facts.is_encoder)
        params = SamplingParams(
            max_tokens=0,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            is_streamed=False,
            pooling=pooling,
        )
        is_chat = not isinstance(prompt, str | list)
        return PromptRequest(
            prompt, params, add_special_tokens=not is_chat, truncation=self._truncation(body), text_pair=text_pair
        )

    def _truncation(self, body: PooledFields) -> Truncation | None:
        num_kept, most = body.truncate_prompt_tokens, self._max_model_len
        if num_kept is None:
            return None
        if num_kept == 0 or num_kept > most:
            raise bad_request(
                f"truncate_prompt_tokens must be a whole number from 1 to {most}, or -1 for the model's length, "
                f"got {num_kept}",
                "truncate_prompt_tokens",
            )
        return Truncation(most if num_kept < 0 else num_kept, body.truncation_side or "right")

    def reply(
        self, body: PooledFields, trace: RequestTrace, requests: Sequence[PromptRequest], param: str, content: Content
    ) -> WholeReply:
        """Opens `requests` and returns the response. `param` is the field with their texts. Raises `RequestError`."""
        limit = self._service.admission.limit
        if len(requests) > limit:
            raise bad_request(
                f"{param} makes {len(requests)} requests, and at most {limit} may be open "
                "(--max-num-seqs and --max-queued-requests)",
                param,
            )
        opened = self._service.open_all(requests, trace, is_streamed=False, timeout_s=body.timeout_s)
        return WholeReply(self._service, opened, lambda: content(opened))


def values_of(generation: Generation) -> "array[float]":
    """Returns the numbers of an ended request. Raises `UnavailableError` if it was ended before it had them."""
    if generation.pooled is None:
        reason = generation.ended.finish_reason
        raise UnavailableError(f"a part of the request ended without a result ({reason})", reason)
    return unpack_float32(generation.pooled.values)


def usage_of(generations: Sequence[Generation]) -> PooledUsage:
    num_tokens = sum(generation.ended.usage.prompt_tokens for generation in generations)
    return PooledUsage(num_tokens, num_tokens)


def as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
