"""The prefix cache of a real server, as operators see it."""

from typing import Any

import httpx
import pytest

from tests.ring.client import OPERATOR, TIMEOUT_S, RingClient, body

pytestmark = pytest.mark.ring

PROMPT = [11 + (place * place) % 200 for place in range(60)]


def explain(ring: RingClient, **question: Any) -> dict[str, Any]:
    reply = httpx.post(f"{ring.url}/cache/explain", json=question, headers=OPERATOR, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_what_is_found_of_a_prompt_is_what_a_request_then_finds(plain_ring: RingClient):
    request = body(PROMPT, max_tokens=1, stream=False, request_id="explained", cache_salt="explain")
    first = httpx.post(f"{plain_ring.url}/generate", json=request, timeout=TIMEOUT_S).json()
    assert first["usage"]["cached_tokens"] == 0
    shown = explain(plain_ring, prompt=PROMPT, cache_salt="explain")
    assert (shown["hit_tokens"], shown["ended_by"]) == (48, "page_not_full")
    (source,) = shown["sources"]
    assert (source["uid"], source["request_id"], source["end"]) == (first["uid"], "explained", 48)
    again = httpx.post(f"{plain_ring.url}/generate", json=request, timeout=TIMEOUT_S).json()
    assert again["usage"]["cached_tokens"] == shown["hit_tokens"]


def test_a_text_that_continues_differently(plain_ring: RingClient):
    text = "Once upon a time there was a scheduler that told everyone why they had to wait."
    salt = {"cache_salt": "differs"}
    request = body(text, max_tokens=1, stream=False, **salt)
    httpx.post(f"{plain_ring.url}/generate", json=request, timeout=TIMEOUT_S).raise_for_status()
    ids = httpx.post(f"{plain_ring.url}/tokenize", json={"prompt": text}, timeout=TIMEOUT_S).json()["tokens"]
    other = [*ids[:20], ids[20] + 1, *ids[21:]]
    shown = explain(plain_ring, prompt=other, **salt)
    assert (shown["ended_by"], shown["position"], shown["hit_tokens"]) == ("different_token", 20, 16)
    assert (shown["prompt_token"], shown["cached_token"]) == (ids[20] + 1, ids[20])
    assert explain(plain_ring, prompt=text, **salt)["hit_tokens"] == (len(ids) - 1) // 16 * 16


def test_the_tree_counts_what_is_cached(plain_ring: RingClient):
    reply = httpx.get(f"{plain_ring.url}/cache/tree", params={"limit": 3}, headers=OPERATOR, timeout=TIMEOUT_S)
    shown = reply.json()
    assert len(shown["nodes"]) <= 3
    sizes = [node["tokens"] for node in shown["nodes"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= shown["cached_tokens"]
