"""The endpoints of text-embeddings-inference: `POST /embed`, `/similarity`, and the form of their errors."""

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from extras.embeddings.pooled_requests import PooledCalls, PooledFields, vector_of
from extras.embeddings.prompts import PromptName, find_prompt
from extras.embeddings.scores import ScoreOptions, Scorer
from extras.embeddings.vectors import INPUT_TEXT, Several, read_inputs
from frontend.api.parameters.sampling import AtLeastOne, NonEmpty, Switch
from frontend.errors import ErrorFields, ErrorForm, error_body
from frontend.http.responses import error_reply
from frontend.http.stream import WholeReply
from frontend.requests.trace import trace_of
from messages.errors import ErrorInfo, RequestError
from messages.ring.requests import Pooling

Direction = Annotated[
    Literal["Left", "Right", "left", "right"] | None, Meta(description='"Left" or "Right", the side that is cut')
]


class TeiError(msgspec.Struct, frozen=True):
    error: str
    error_type: str


def tei_error(info: ErrorInfo) -> TeiError:
    kind = "Overloaded" if info.status == 503 else "Validation" if info.status < 500 else "Backend"
    return TeiError(info.message, kind)


class EitherError(msgspec.Struct, frozen=True):
    """An error in OpenAI's form or, with an `error_type`, in TEI's."""

    error: ErrorFields | str
    error_type: str | UnsetType = UNSET


def either_error(info: ErrorInfo) -> EitherError:
    return EitherError(error_body(info).error)


TEI_ERRORS = ErrorForm(TeiError, tei_error)
EITHER_ERRORS = ErrorForm(EitherError, either_error)
"""For paths on which a request may have TEI's form; `TeiReply` makes the errors of those that do."""


class TeiFields(PooledFields, frozen=True, kw_only=True):
    truncate: Switch = None
    truncation_direction: Direction = None


class EmbedBody(TeiFields, frozen=True, kw_only=True):
    inputs: Annotated[NonEmpty | Several, Meta(description=INPUT_TEXT)]
    prompt_name: PromptName = None
    normalize: Switch = None
    dimensions: AtLeastOne = None


class SimilarityInputs(msgspec.Struct, frozen=True):
    source_sentence: NonEmpty
    sentences: Annotated[list[NonEmpty], Meta(min_length=1)]


class SimilarityParameters(msgspec.Struct, frozen=True):
    truncate: bool = False
    truncation_direction: Direction = None
    prompt_name: PromptName = None


class SimilarityBody(PooledFields, frozen=True, kw_only=True):
    inputs: Annotated[
        SimilarityInputs, Meta(description="an object with a source_sentence and a list of sentences, none empty")
    ]
    parameters: Annotated[
        SimilarityParameters | None, Meta(description="an object with truncate, truncation_direction, prompt_name")
    ] = None


class RankedText(msgspec.Struct, frozen=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


B = TypeVar("B", bound=PooledFields)


def with_truncation(body: B, truncate: bool | None, direction: str | None) -> B:
    """Returns the body with the choices of TEI's API under the names that all pooled endpoints have."""
    if not truncate:
        return body
    side = "left" if direction in ("Left", "left") else "right"
    return msgspec.structs.replace(body, truncate_prompt_tokens=-1, truncation_side=side)


class TeiApi:
    def __init__(self, calls: PooledCalls, scorer: Scorer):
        self._calls = calls
        self._scorer = scorer
        self._embeds = calls.reader(EmbedBody)
        self._similarities = calls.reader(SimilarityBody)

    async def embed(self, request: Request) -> WholeReply:
        """Raises `RequestError`."""
        body = await self._embeds.read(request)
        body = with_truncation(body, body.truncate, body.truncation_direction)
        pooling = Pooling("embed", dimensions=body.dimensions or 0, normalizes=body.normalize is not False)
        before = find_prompt(self._calls.pooling, body.prompt_name)
        requests = [self._calls.request(body, prompt, pooling) for prompt in read_inputs(body.inputs, before, "inputs")]
        return self._calls.reply(
            body, trace_of(request.scope), requests, lambda rows: [vector_of(row).tolist() for row in rows], "inputs"
        )

    async def compare(self, request: Request) -> WholeReply:
        """Raises `RequestError`."""
        body = await self._similarities.read(request)
        provided, inputs = body.parameters or SimilarityParameters(), body.inputs
        body = with_truncation(body, provided.truncate, provided.truncation_direction)
        pairs = [(inputs.source_sentence, sentence) for sentence in inputs.sentences]
        options = ScoreOptions((None, None), ("source_sentence", "sentences"), prompt_name=provided.prompt_name)
        scoring = self._scorer.compare(body, pairs, options)
        return self._calls.reply(body, trace_of(request.scope), scoring.requests, scoring.scores, scoring.places)


class TeiReply:
    """An ASGI response: the one that `make` returns. An error before it has TEI's form, whatever that of the path."""

    def __init__(self, make: Callable[[], ASGIApp]):
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        try:
            await self._make()(scope, receive, send)
        except RequestError as error:
            if trace.status:
                raise
            await error_reply(error, trace.method, trace.path, TEI_ERRORS)(scope, receive, send)
