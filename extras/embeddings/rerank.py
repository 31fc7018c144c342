"""`POST /v1/rerank`, `/v2/rerank`, `/rerank`, `/v1/score`, `/score`: how well documents fit a query."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.types import ASGIApp

from extras.embeddings.pooled_requests import PooledCalls, PooledFields, PooledUsage, ResultList, usage_of
from extras.embeddings.scores import ScoreOptions, Scorer, Scoring
from extras.embeddings.tei import RankedText, TeiFields, TeiReply, with_truncation
from frontend.api.parameters.sampling import AtLeastOne, NonEmpty, Switch
from frontend.http.stream import WholeReply
from frontend.requests.generation import Generation
from frontend.requests.trace import trace_of
from messages.errors import bad_request

PATH_WITHOUT_DOCUMENTS = "/v2/rerank"
"""The path of Cohere's API, which returns documents only if asked."""

TEXTS_TEXT = "a list of strings, none of them empty"
DOCUMENTS_TEXT = "a list of strings or of objects with a text, none of them empty"
SIDE_TEXT = "a string or a list of strings, none of them empty"


class Document(msgspec.Struct, frozen=True):
    text: NonEmpty


Texts = Annotated[list[NonEmpty], Meta(min_length=1)]
Documents = Annotated[list[NonEmpty | Document], Meta(min_length=1)]
SideTexts = Annotated[NonEmpty | Texts | None, Meta(description=SIDE_TEXT)]


class RerankBody(TeiFields, frozen=True, kw_only=True):
    """With `texts` instead of `documents` it is a request of TEI's API, whose reply is a list."""

    query: Annotated[str, Meta(min_length=1, description="a string, not empty")]
    documents: Annotated[Documents | None, Meta(description=DOCUMENTS_TEXT)] = None
    top_n: AtLeastOne = None
    return_documents: Switch = None
    instruction: Annotated[NonEmpty | None, Meta(description="a string, not empty")] = None
    texts: Annotated[Texts | None, Meta(description=TEXTS_TEXT)] = None
    raw_scores: Switch = None
    return_text: Switch = None


class RerankResult(msgspec.Struct, frozen=True):
    """`index` is the document's place in the request."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankReply(msgspec.Struct, frozen=True):
    id: str
    model: str
    usage: PooledUsage
    results: list[RerankResult]


class ScoreBody(PooledFields, frozen=True, kw_only=True):
    text_1: SideTexts = None
    text_2: SideTexts = None
    queries: SideTexts = None
    documents: SideTexts = None
    instruction: Annotated[NonEmpty | None, Meta(description="a string, not empty")] = None


class ScoreData(msgspec.Struct, frozen=True):
    index: int
    score: float
    object: Literal["score"] = "score"


class RerankApi:
    def __init__(self, calls: PooledCalls, scorer: Scorer):
        self._calls = calls
        self._scorer = scorer
        self._reranks = calls.reader(RerankBody)
        self._scores = calls.reader(ScoreBody)

    async def rerank(self, request: Request) -> ASGIApp:
        """Raises `RequestError`."""
        body = await self._reranks.read(request)
        if (body.documents is None) == (body.texts is None):
            raise bad_request("give either documents or, as in TEI's API, texts", "documents")
        if body.texts is not None:
            return TeiReply(lambda: self._rank_texts(request, body, body.texts or []))
        trace = trace_of(request.scope)
        documents = [each if isinstance(each, str) else each.text for each in body.documents or []]
        scoring = self._score(body, documents)
        has_documents = body.return_documents
        if has_documents is None:
            has_documents = request.url.path != PATH_WITHOUT_DOCUMENTS

        def content(rows: Sequence[Generation]) -> RerankReply:
            ranked = ranked_scores(scoring.scores(rows))[: body.top_n]
            shown = {index: Document(documents[index]) for index, _ in ranked} if has_documents else {}
            results = [RerankResult(index, score, shown.get(index, UNSET)) for index, score in ranked]
            return RerankReply(f"rerank-{trace.request_id}", self._calls.model_name(body), usage_of(rows), results)

        return self._calls.reply(body, trace, scoring.requests, content, scoring.places)

    def _rank_texts(self, request: Request, body: RerankBody, texts: list[str]) -> WholeReply:
        body = with_truncation(body, body.truncate, body.truncation_direction)
        scoring = self._score(body, texts)

        def content(rows: Sequence[Generation]) -> list[RankedText]:
            ranked = ranked_scores(scoring.scores(rows))
            return [RankedText(index, score, texts[index] if body.return_text else UNSET) for index, score in ranked]

        return self._calls.reply(body, trace_of(request.scope), scoring.requests, content, scoring.places)

    def _score(self, body: RerankBody, documents: list[str]) -> Scoring:
        names = ("query", "documents" if body.texts is None else "texts")
        options = ScoreOptions(names=names, instruction=body.instruction, is_raw=bool(body.raw_scores))
        return self._scorer.score(body, [(body.query, document) for document in documents], options)

    async def score(self, request: Request) -> WholeReply:
        """Raises `RequestError`."""
        body = await self._scores.read(request)
        trace, (pairs, names) = trace_of(request.scope), _pairs_of(body)
        types = ("query", "document") if names[0] == "queries" else (None, None)
        scoring = self._scorer.score(body, pairs, ScoreOptions(types, names, body.instruction))

        def content(rows: Sequence[Generation]) -> ResultList[ScoreData]:
            data = [ScoreData(index, score) for index, score in enumerate(scoring.scores(rows))]
            return self._calls.result_list("score", trace, body, rows, data)

        return self._calls.reply(body, trace, scoring.requests, content, scoring.places)


def ranked_scores(scores: Sequence[float]) -> list[tuple[int, float]]:
    """Returns indices with their scores, the highest first; equal ones in the caller's order."""
    return sorted(enumerate(scores), key=lambda entry: -entry[1])


def _pairs_of(body: ScoreBody) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """Returns the pairs, and the names of the fields with their first and second texts. Raises `RequestError` (400)."""
    provided = [name for name in ("text_1", "text_2", "queries", "documents") if getattr(body, name) is not None]
    if provided not in (["text_1", "text_2"], ["queries", "documents"]):
        raise bad_request(
            "give either text_1 and text_2 or queries and documents", provided[0] if provided else "text_1"
        )
    texts = (getattr(body, name) for name in provided)
    first, second = ([value] if isinstance(value, str) else value for value in texts)
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise bad_request(
            f"{provided[0]} must have one text, or one for each of {provided[1]}: got {len(first)} and {len(second)}",
            provided[0],
        )
    return list(zip(first, second, strict=True)), (provided[0], provided[1])
