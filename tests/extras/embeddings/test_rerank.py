"""`/v1/rerank`, `/v2/rerank`, `/rerank`, `/v1/score`, `/score`: bodies, replies in order, errors in both forms."""

from typing import Any

import pytest

from tests.extras.embeddings.ring import post
from tests.frontend.frontend_run import FrontendRun, final

FITS, FITS_NOT, HALF = [-0.1, -9.0], [-9.0, -0.1], [-1.0, -1.0]
"""Logprobs of yes and no."""

DOCUMENTS: list[Any] = ["a", {"text": "b"}, "c"]


def test_documents_are_ranked_and_keep_their_index(server: FrontendRun):
    body = {"query": "q", "documents": DOCUMENTS, "top_n": 2, "model": "m"}
    reply, _ = post(server, "/v1/rerank", body, HALF, FITS, FITS_NOT)
    assert reply.pop("id").startswith("rerank-")
    assert reply == {
        "model": "m",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
        "results": [
            {"index": 1, "relevance_score": pytest.approx(0.9998635), "document": {"text": "b"}},
            {"index": 0, "relevance_score": 0.5, "document": {"text": "a"}},
        ],
    }


@pytest.mark.parametrize(
    ("path", "fields", "has_documents"),
    [
        ("/rerank", {}, True),
        ("/rerank", {"return_documents": False}, False),
        ("/v2/rerank", {}, False),
        ("/v2/rerank", {"return_documents": True, "max_tokens_per_doc": 4096}, True),
    ],
)
def test_documents_are_returned_if_asked(server: FrontendRun, path: str, fields: dict[str, Any], has_documents: bool):
    reply, _ = post(server, path, {"query": "q", "documents": ["a", "b"], **fields}, FITS_NOT, FITS)
    assert [result["index"] for result in reply["results"]] == [1, 0]
    assert all(("document" in result) == has_documents for result in reply["results"])


def test_equal_scores_stay_in_the_order_of_the_request(server: FrontendRun):
    reply, _ = post(server, "/v1/rerank", {"query": "q", "documents": ["a", "b", "c"]}, HALF, FITS, HALF)
    assert [result["index"] for result in reply["results"]] == [1, 0, 2]


def test_texts_make_it_a_request_of_tei(server: FrontendRun):
    body = {"query": "q", "texts": ["a", "b"], "return_text": True}
    reply, _ = post(server, "/rerank", body, FITS_NOT, FITS)
    assert [(entry["index"], entry["text"]) for entry in reply] == [(1, "b"), (0, "a")]
    reply, _ = post(server, "/rerank", {"query": "q", "texts": ["a"], "raw_scores": True}, FITS)
    assert reply == [{"index": 0, "score": pytest.approx(8.9)}]


def test_errors_have_the_form_of_the_request(server: FrontendRun):
    for body, is_tei in (({"texts": ["a"]}, True), ({"documents": ["a"]}, False)):
        asked = server.ask("/rerank", {"query": "q", **body})
        message = server.take_request()
        server.send(final(message, finish_reason="abort"))
        response = asked.response()
        assert response.status_code == 503
        assert isinstance(response.json()["error"], str) == is_tei
        assert response.json().get("error_type") == ("Overloaded" if is_tei else None)
    refused = server.client.post("/rerank", json={"query": "q", "texts": ["a"], "truncate": True})
    assert (refused.status_code, refused.json()["error_type"]) == (400, "Validation")


@pytest.mark.parametrize(
    "body",
    [
        {"query": "q"},
        {"query": "", "documents": ["a"]},
        {"query": "q", "documents": []},
        {"query": "q", "documents": [""]},
        {"query": "q", "documents": ["a"], "texts": ["a"]},
        {"query": "q", "documents": [{"title": "a"}]},
        {"query": "q", "documents": ["a"], "top_n": 0},
    ],
)
def test_refused_bodies(server: FrontendRun, body: Any):
    response = server.client.post("/v1/rerank", json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert not server.arrived()


def test_more_documents_than_may_be_open_are_named(server: FrontendRun):
    response = server.client.post("/v1/rerank", json={"query": "q", "documents": list(map(str, range(2000)))})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "documents")


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_one_text_is_scored_with_each_of_several(server: FrontendRun, path: str, names: tuple[str, str]):
    reply, messages = post(server, path, {names[0]: "q", names[1]: ["a", "b"]}, HALF, FITS)
    assert len(messages) == 2
    assert reply["data"][0] == {"object": "score", "index": 0, "score": 0.5}
    assert reply["data"][1]["score"] > 0.99


def test_texts_are_scored_in_pairs(server: FrontendRun):
    reply, _ = post(server, "/v1/score", {"text_1": ["p", "q"], "text_2": ["a", "b"]}, FITS, FITS_NOT)
    assert reply["data"][0]["score"] > 0.99 > 0.01 > reply["data"][1]["score"]


@pytest.mark.parametrize(
    "body", [{"text_1": "a"}, {"text_1": ["a", "b"], "text_2": "c"}, {"text_1": "a", "documents": "b"}, {}]
)
def test_refused_pairs(server: FrontendRun, body: Any):
    response = server.client.post("/v1/score", json=body)
    assert response.status_code == 400
    assert not server.arrived()


def test_a_score_beyond_any_probability_stays_finite(server: FrontendRun):
    reply, _ = post(server, "/v1/score", {"text_1": "a", "text_2": "b"}, [-1e30, -1.0])
    assert reply["data"][0]["score"] == 0.0
