"""The fields that all pooled endpoints share, and how their bodies become requests and replies."""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from frontend.api.answers.pooled import open_pooled, pooled_reply
from frontend.api.parameters.adapter_names import find_adapter, salt_for
from frontend.api.parameters.foreign_fields import FOREIGN
from frontend.api.parameters.generation_body import NumKept, RequestId, RequestReader, Side, checked_truncation
from frontend.api.parameters.sampling import INT64_TEXT, Int64, Salt, Seconds
from frontend.extras import FrontendContext
from frontend.http.field_names import NameRules
from frontend.http.stream import WholeReply
from frontend.requests.generation import Generation
from frontend.requests.prompt_request import Prompt, PromptRequest
from frontend.requests.trace import RequestTrace
from messages.columns import unpack_float32
from messages.config.pooling import PoolingFacts
from messages.errors import bad_request
from messages.ring.requests import ChatPrompt, Pooling, SamplingParams, Truncation

IGNORED = (
    *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_options", "max_tokens_per_doc"),
    *("embed_dtype", "endianness", "late_chunking", "max_chunks_per_doc", "add_special_tokens", "keep_alive"),
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

Content = Callable[[Sequence[Generation]], Any]
"""Makes the document of a reply from the requests, which have ended."""


class PooledFields(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[str | None, Meta(description="a string, one of the names in /v1/models")] = None
    truncate_prompt_tokens: NumKept = None
    truncation_side: Side = None
    request_id: RequestId = None
    priority: Annotated[Int64 | None, Meta(description=INT64_TEXT)] = None
    cache_salt: Annotated[Salt | None, Meta(description="a string of 1 to 128 characters")] = None
    timeout_s: Annotated[Seconds | None, Meta(description="a number of seconds above 0")] = None


class PooledUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


T = TypeVar("T", bound=PooledFields)
D = TypeVar("D")


class ResultList(msgspec.Struct, Generic[D], frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    id: str
    created: int
    model: str
    data: list[D]
    usage: PooledUsage


class PooledCalls:
    """Makes the requests of bodies, each for one result of its prompt, and the response when all have ended."""

    def __init__(self, context: FrontendContext):
        self.service, self._unknown = context.service, context.unknown
        self._facts = facts = context.service.config.facts
        self.pooling = facts.pooling or PoolingFacts()

    def reader(self, struct: type[T], renamed: dict[str, str] | None = None) -> RequestReader[T]:
        """Returns the reader of an endpoint; `renamed` are other servers' names for fields of its bodies."""
        rules = NameRules(REFUSED, IGNORED, renamed or {}, FOREIGN)
        return RequestReader(self.service, struct, rules, self._unknown)

    def model_name(self, body: PooledFields) -> str:
        """Returns the model's name as the client spells it."""
        return body.model or self._facts.served_names[0]

    def result_list(
        self, kind: str, trace: RequestTrace, body: PooledFields, entries: Sequence[Generation], data: list[D]
    ) -> ResultList[D]:
        """Returns the document with `data`, whose id begins with `kind`."""
        reply_id, model = f"{kind}-{trace.request_id}", self.model_name(body)
        return ResultList(id=reply_id, created=int(time.time()), model=model, data=data, usage=usage_of(entries))

    def request(
        self, body: PooledFields, prompt: Prompt, pooling: Pooling, text_pair: str | None = None
    ) -> PromptRequest:
        """Returns the request for one result. Raises `RequestError` (400)."""
        adapter = find_adapter(self._facts, body.model)
        params = SamplingParams(
            max_tokens=0,
            priority=body.priority or 0,
            cache_salt=salt_for(adapter, body.cache_salt or ""),
            adapter=adapter,
            pooling=pooling,
        )
        is_chat = isinstance(prompt, ChatPrompt)
        return PromptRequest(
            prompt, params, add_special_tokens=not is_chat, truncation=self._truncation(body), text_pair=text_pair
        )

    def _truncation(self, body: PooledFields) -> Truncation | None:
        most, side = self._facts.max_model_len, body.truncation_side or "right"
        num_kept = most if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens
        return checked_truncation(num_kept, side, most, "the model's length")

    def reply(
        self,
        body: PooledFields,
        trace: RequestTrace,
        requests: Sequence[PromptRequest],
        content: Content,
        places: str | Sequence[str],
    ) -> WholeReply:
        """Opens `requests` and returns the response. Raises `RequestError`.

        `places` names the part of the body that each request comes from, or the list that has one part for each.
        """
        entries = open_pooled(self.service, requests, trace, timeout_s=body.timeout_s, param=places)
        return pooled_reply(self.service, entries, lambda: content(entries), places)


def values_of(entry: Generation) -> "array[float]":
    """Returns the numbers of a request that has them."""
    assert entry.pooled is not None, f"uid {entry.uid} has no numbers"
    return unpack_float32(entry.pooled.values)


def vector_of(entry: Generation) -> "array[float]":
    """Returns the numbers of a vector, or of all tokens. Raises `RequestError` (400) if the model's is shorter."""
    values, pooling = values_of(entry), entry.message.sampling_params.pooling
    assert entry.pooled is not None
    assert pooling is not None
    size = len(values) // max(1, entry.pooled.num_rows)
    if pooling.dimensions > size:
        raise bad_request(
            f"dimensions must be at most {size}, the length of the model's vectors, got {pooling.dimensions}",
            "dimensions",
        )
    return values


def usage_of(entries: Sequence[Generation]) -> PooledUsage:
    num_tokens = sum(entry.ended.usage.prompt_tokens for entry in entries)
    return PooledUsage(num_tokens, num_tokens)
