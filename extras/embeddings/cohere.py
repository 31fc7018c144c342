"""`POST /v2/embed`: Cohere's endpoint for embeddings."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request

from extras.embeddings.pooled_requests import PooledCalls, PooledFields, usage_of, vector_of
from extras.embeddings.prompts import InputType, find_prompt
from extras.embeddings.vectors import FORMS, Kind
from frontend.api.parameters.sampling import AtLeastOne, NonEmpty
from frontend.http.stream import WholeReply
from frontend.requests.generation import Generation
from frontend.requests.trace import trace_of
from messages.errors import bad_request
from messages.ring.requests import Pooling

INPUTS_TEXT = 'a list of objects with a content, a list of {"type": "text", "text": …}'
SIDES = {"START": "left", "END": "right", "NONE": None}


class InputText(msgspec.Struct, frozen=True):
    type: Literal["text"]
    text: NonEmpty


class EmbedInput(msgspec.Struct, frozen=True):
    content: Annotated[list[InputText], Meta(min_length=1)]


class CohereEmbedBody(PooledFields, frozen=True, kw_only=True):
    """`truncate` "END", the default, keeps the beginning of a text that is longer than `max_tokens` or the model."""

    texts: Annotated[
        Annotated[list[NonEmpty], Meta(min_length=1)] | None, Meta(description="a list of strings, none of them empty")
    ] = None
    inputs: Annotated[Annotated[list[EmbedInput], Meta(min_length=1)] | None, Meta(description=INPUTS_TEXT)] = None
    input_type: InputType = None
    embedding_types: Annotated[
        Annotated[list[Kind], Meta(min_length=1)] | None, Meta(description='a list of "float" and "base64"')
    ] = None
    output_dimension: AtLeastOne = None
    max_tokens: AtLeastOne = None
    truncate: Annotated[Literal["NONE", "START", "END"] | None, Meta(description='"NONE", "START" or "END"')] = None


class TypedVectors(msgspec.Struct, frozen=True, rename={"floats": "float"}):
    """One list for each of `embedding_types`."""

    floats: list[list[float]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class ApiVersion(msgspec.Struct, frozen=True):
    version: Literal["2"] = "2"


class BilledUnits(msgspec.Struct, frozen=True):
    input_tokens: int


class CohereMeta(msgspec.Struct, frozen=True):
    billed_units: BilledUnits
    api_version: ApiVersion = ApiVersion()


class CohereVectors(msgspec.Struct, frozen=True):
    id: str
    embeddings: TypedVectors
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class CohereApi:
    def __init__(self, calls: PooledCalls):
        self._calls = calls
        self._reader = calls.reader(CohereEmbedBody)
        self._max_tokens = calls.service.config.facts.max_model_len

    async def embed(self, request: Request) -> WholeReply:
        """Raises `RequestError`."""
        body = await self._reader.read(request)
        trace, texts = trace_of(request.scope), _texts_of(body)
        side: Any = SIDES[body.truncate or "END"]
        if side is not None:
            num_kept = min(body.max_tokens or self._max_tokens, self._max_tokens)
            body = msgspec.structs.replace(body, truncate_prompt_tokens=num_kept, truncation_side=side)
        before = find_prompt(self._calls.pooling, None, body.input_type)
        pooling = Pooling("embed", dimensions=body.output_dimension or 0)
        requests = [self._calls.request(body, before + text, pooling) for text in texts]

        def content(rows: Sequence[Generation]) -> CohereVectors:
            vectors = [vector_of(row) for row in rows]
            kinds = dict.fromkeys(body.embedding_types or ("float",))
            typed: dict[str, Any] = {kind: [FORMS[kind](vector) for vector in vectors] for kind in kinds}
            made = TypedVectors(typed.get("float", UNSET), typed.get("base64", UNSET))
            return CohereVectors(trace.request_id, made, texts, CohereMeta(BilledUnits(usage_of(rows).prompt_tokens)))

        return self._calls.reply(body, trace, requests, content, "texts" if body.inputs is None else "inputs")


def _texts_of(body: CohereEmbedBody) -> list[str]:
    """Raises `RequestError` (400)."""
    if (body.texts is None) == (body.inputs is None):
        raise bad_request("give either texts or inputs", "texts")
    if body.texts is not None:
        return body.texts
    return ["\n".join(part.text for part in each.content) for each in body.inputs or ()]
