"""Beam search through the whole ring equals that of transformers in float32 (recorded by `beam_reference.py`)."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ring.client import TIMEOUT_S, RingClient

pytestmark = pytest.mark.ring

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("beam_search.json").read_text(encoding="utf-8"))


def complete(ring: RingClient, **body: Any) -> dict[str, Any]:
    request = {"use_beam_search": True, "return_token_ids": True, **body}
    reply = httpx.post(f"{ring.url}/v1/completions", json=request, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_beams_are_those_of_transformers(plain_ring: RingClient, bard_ring: RingClient):
    for case in CASES:
        ring = plain_ring if case["model"] == "tiny" else bard_ring
        reply = complete(ring, prompt=case["prompt"], **case["fields"])
        assert [choice["token_ids"] for choice in reply["choices"]] == case["beams"]
        assert [choice["text"] for choice in reply["choices"]] == case["texts"]
        ends = case["fields"].get("stop_token_ids", [])
        assert {choice["stop_reason"] for choice in reply["choices"]} <= {None, *ends}
        assert reply["usage"]["completion_tokens"] == sum(map(len, case["beams"]))


def test_the_best_of_one_beam_is_the_greedy_text(bard_ring: RingClient):
    chat = {"messages": [{"role": "user", "content": "Good morrow"}], "max_tokens": 8}
    url = f"{bard_ring.url}/v1/chat/completions"
    found, greedy = (
        httpx.post(url, json={**chat, **more}, timeout=TIMEOUT_S).json()
        for more in ({"use_beam_search": True}, {"temperature": 0})
    )
    assert found["choices"] == greedy["choices"]
    assert found["usage"]["completion_tokens"] == greedy["usage"]["completion_tokens"]
