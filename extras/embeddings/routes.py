"""The part of the route table that is about vectors and scores."""

from functools import partial

from extras.embeddings import vectors
from extras.embeddings.cohere import CohereApi, CohereEmbedBody, CohereVectors
from extras.embeddings.pooled_requests import ResultList
from extras.embeddings.rerank import RerankApi, RerankBody, RerankReply, ScoreBody, ScoreData
from extras.embeddings.tei import EITHER_ERRORS, TEI_ERRORS, EmbedBody, RankedText, SimilarityBody, TeiApi
from frontend.http.endpoint import Endpoint

QUERY, DOCUMENTS = "What is a llama?", ["A camelid.", "A kind of bread."]
RERANK = {"query": QUERY, "documents": DOCUMENTS, "top_n": 1}

_POST = partial(Endpoint, tag="embeddings", errors=(404, 504))
_TEI = partial(_POST, error_form=TEI_ERRORS)


def pooling(api: vectors.VectorApi, cohere: CohereApi) -> list[Endpoint]:
    """Returns the endpoints with one result for each input."""
    return [
        _POST(
            "/v1/embeddings",
            api.embed,
            "The vectors of texts",
            ResultList[vectors.EmbeddingData],
            body=vectors.EmbeddingBody,
            examples={
                "one": {"input": QUERY},
                "several": {"input": DOCUMENTS, "encoding_format": "base64", "truncate_prompt_tokens": -1},
                "token ids": {"input": [[1, 2, 3], [4]]},
            },
        ),
        _POST(
            "/v2/embed",
            cohere.embed,
            "The vectors of texts, as Cohere returns them",
            CohereVectors,
            body=CohereEmbedBody,
            examples={"several": {"texts": DOCUMENTS, "input_type": "search_document", "embedding_types": ["float"]}},
        ),
        _POST(
            "/pooling",
            api.pool,
            "Vectors, vectors of each token, or logits of the model's head",
            ResultList[vectors.PoolingData],
            body=vectors.PoolingBody,
            examples={"a vector for each token": {"input": QUERY, "task": "token_embed"}},
        ),
        _POST(
            "/classify",
            api.classify,
            "The probabilities of the model's labels",
            ResultList[vectors.ClassData],
            body=vectors.ClassifyBody,
            examples={"several": {"input": DOCUMENTS}},
        ),
    ]


def ranking(api: RerankApi, tei: TeiApi) -> list[Endpoint]:
    """Returns the endpoints that compare texts, and those of TEI."""
    rank = partial(
        _POST, run=api.rerank, summary="Documents by how well they fit a query", reply=RerankReply | list[RankedText]
    )
    rank = partial(rank, body=RerankBody, examples={"documents": RERANK}, error_form=EITHER_ERRORS)
    score = partial(
        _POST, run=api.score, summary="Scores of pairs of texts", reply=ResultList[ScoreData], body=ScoreBody
    )
    score = partial(score, examples={"one query": {"queries": QUERY, "documents": DOCUMENTS}})
    return [
        *(rank(path) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
        *(score(path) for path in ("/v1/score", "/score")),
        _TEI(
            "/embed",
            tei.embed,
            "The vectors of texts, as TEI returns them",
            list[list[float]],
            body=EmbedBody,
            examples={"several": {"inputs": DOCUMENTS, "truncate": True}},
        ),
        _TEI(
            "/similarity",
            tei.compare,
            "Similarities of sentences to one, as TEI returns them",
            list[float],
            body=SimilarityBody,
            examples={"one": {"inputs": {"source_sentence": QUERY, "sentences": DOCUMENTS}}},
        ),
    ]
