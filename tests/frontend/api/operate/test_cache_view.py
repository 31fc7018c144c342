"""`POST /cache/explain` and `GET /cache/tree`: for the operator, in words, with the public ids of requests."""

from collections.abc import Iterator
from typing import Any

import pytest

from messages.columns import pack_int32, unpack_int32
from messages.config.server import HttpConfig
from messages.ring.cache import CacheExplained, CacheListed, CacheNode, CacheSource, ExplainCache, ListCache
from messages.ring.replies import EncodeReply
from messages.ring.requests import EncodeMsg
from tests.frontend.frontend_run import Asked, FrontendRun, final, make_config

KEY = "sk-operator"
OPERATOR = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def run() -> Iterator[FrontendRun]:
    with FrontendRun(make_config(HttpConfig(port=0, admin_key=(KEY,))), headers=OPERATOR) as run:
        yield run


def serve(run: FrontendRun, request_id: str) -> int:
    """Returns the uid of a request that has been served."""
    with run.call({"stream": False, "request_id": request_id}) as call:
        message = run.take_request()
        run.send(final(message, "ok", (1,)))
        call.json()
    return message.uid


def explain(run: FrontendRun, body: dict[str, Any], **answer: Any) -> dict[str, Any]:
    """Asks, and plays the scheduler."""
    asked = run.ask("/cache/explain", body)
    question = run.take(ExplainCache)
    fields = {"num_hit_tokens": 0, "sources": (), "ended_by": "not_cached", "position": 0, **answer}
    run.send(CacheExplained(question.uid, **fields))
    reply = asked.response()
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_ids_are_asked_about_as_they_are_and_requests_have_their_names(run: FrontendRun):
    uid = serve(run, "the-first")
    shown = explain(
        run,
        {"prompt": [5, 6, 7, 8, 9]},
        num_hit_tokens=4,
        sources=(CacheSource(uid, 0, 4), CacheSource(12, 4, 5)),
        ended_by="different_token",
        position=4,
        cached_token=33,
        other_uid=uid,
    )
    assert shown["sources"] == [
        {"uid": uid, "request_id": "the-first", "start": 0, "end": 4},
        {"uid": 12, "request_id": None, "start": 4, "end": 5},
    ]
    assert (shown["prompt_tokens"], shown["hit_tokens"], shown["position"]) == (5, 4, 4)
    assert (shown["prompt_token"], shown["cached_token"], shown["other_request_id"]) == (9, 33, "the-first")
    assert shown["text"] == (
        "token 4 differs: 33 is cached there; pages are shared as a whole, so tokens from 4 on are computed"
    )


def test_a_text_and_a_chat_are_tokenized_first(run: FrontendRun):
    for body in ({"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}):
        asked = run.ask("/cache/explain", {**body, "cache_salt": "s"})
        encode = run.take(EncodeMsg)
        assert (encode.prompt_text, encode.chat is not None) == (body.get("prompt"), "messages" in body)
        run.send(EncodeReply(encode.uid, pack_int32([1, 2, 3])))
        question = run.take(ExplainCache)
        assert (list(unpack_int32(question.input_ids)), question.cache_salt) == ([1, 2, 3], "s")
        run.send(CacheExplained(question.uid, 0, (), "salt", 0, other_uid=5))
        assert "another one does" in asked.response().json()["text"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"ended_by": "page_not_full", "num_hit_tokens": 16}, "of the last 4 tokens one must be computed"),
        (
            {"ended_by": "evicted", "num_hit_tokens": 16, "evicted_s": 2.5},
            "from 16 on were cached and evicted 2.5 s",
        ),
        ({"ended_by": "disabled"}, "the prefix cache is off (--no-enable-prefix-caching)"),
        ({"ended_by": "not_cached", "position": 16}, "nothing that is cached continues with the prompt's token 16"),
    ],
)
def test_why_the_match_ends(run: FrontendRun, answer: dict[str, Any], text: str):
    shown = explain(run, {"prompt": list(range(1, 21))}, **answer)
    assert shown["ended_by"] == answer["ended_by"]
    assert text in shown["text"]
    assert shown["prompt_token"] is None


def test_logprobs_of_the_prompt_leave_nothing_to_find(run: FrontendRun):
    shown = explain(run, {"prompt": [1, 2, 3], "prompt_logprobs": 0}, num_hit_tokens=2, ended_by="page_not_full")
    assert (shown["hit_tokens"], shown["ended_by"]) == (0, "prompt_logprobs")
    assert "else 2 would be found" in shown["text"]


def test_the_tree(run: FrontendRun):
    uid = serve(run, "grown")
    asked = Asked(lambda: run.client.get("/cache/tree?limit=2"))
    question = run.take(ListCache)
    assert question.limit == 2
    nodes = (CacheNode(4, 1, uid, 32, 160, 0, 1, True), CacheNode(1, 0, 3, 0, 32, 2, 1, False))
    run.send(CacheListed(question.uid, nodes, 7, 400, 208))
    shown = asked.response().json()
    assert (shown["num_nodes"], shown["cached_tokens"], shown["evictable_tokens"]) == (7, 400, 208)
    assert shown["nodes"][0] == {
        "number": 4,
        "parent": 1,
        "uid": uid,
        "request_id": "grown",
        "start": 32,
        "tokens": 160,
        "children": 0,
        "requests_using": 1,
        "is_salted": True,
    }
    assert shown["nodes"][1]["parent"] is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "give either prompt or messages"),
        ({"prompt": [1], "messages": [{"role": "user", "content": "x"}]}, "give either prompt or messages"),
        ({"prompt": []}, "prompt must be"),
        ({"prompt": [1], "cache_salt": ""}, "cache_salt must be"),
        ({"prompt": [1], "promt": 3}, "promt"),
    ],
)
def test_a_bad_question_is_refused(run: FrontendRun, body: dict[str, Any], message: str):
    reply = run.client.post("/cache/explain", json=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_an_empty_text_is_refused(run: FrontendRun):
    asked = run.ask("/cache/explain", {"prompt": ""})
    run.send(EncodeReply(run.take(EncodeMsg).uid, b""))
    assert asked.response().status_code == 400


@pytest.mark.parametrize("limit", ["0", "1001", "x", "2.5"])
def test_a_bad_limit_is_refused(run: FrontendRun, limit: str):
    assert run.client.get(f"/cache/tree?limit={limit}").status_code == 400


def test_clients_are_not_reported(run: FrontendRun):
    """The answer may hold tokens of others."""
    for method, path in (("POST", "/cache/explain"), ("GET", "/cache/tree")):
        assert run.client.request(method, path, headers={"Authorization": "Bearer nobody"}).status_code == 401
