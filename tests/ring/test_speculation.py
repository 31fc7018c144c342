"""Speculation as clients see it: the same text, ids and logprobs as without it, even if the scheduler is killed."""

import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ring.client import TIMEOUT_S, Generated, RingClient, body
from tests.ring.conftest import SPECULATIVE
from tests.ring.test_restart import Killer, check_same, disturb, mixed_requests

pytestmark = pytest.mark.ring

MAX_TRIES = 20
FLAGS = ("--dtype", "float32", "--max-restarts-per-min", "100")


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    """A server as it is by default."""
    return start_ring(tiny_checkpoint, *FLAGS, *SPECULATIVE)


@pytest.fixture(scope="module")
def requests(plain_ring: RingClient) -> list[dict[str, Any]]:
    """Requests of all kinds, and some whose text soon repeats."""
    repeating = [body([50 + uid, 9, 70] * 12, max_tokens=150, ignore_eos=True) for uid in range(4)]
    return [*mixed_requests(plain_ring), *repeating]


def counter(ring: RingClient, name: str) -> float:
    metrics = httpx.get(f"{ring.url}/metrics", timeout=TIMEOUT_S).text
    found = re.search(rf"^{re.escape(name)}\{{.*\}} (\S+)$", metrics, re.MULTILINE)
    assert found, f"there is no {name}"
    return float(found[1])


def accept_drafts(ring: RingClient, requests: list[dict[str, Any]], expected: list[Generated]) -> dict[str, float]:
    """Sends the requests until one of their draft tokens is accepted. Returns the scheduler's gauges.

    On a busy machine, draft tokens may seem too slow to be useful.
    """
    before = ring.gauges("scheduler")["accepted_tokens"]
    for _ in range(MAX_TRIES):
        check_same(ring.generate_all(requests), expected)
        ring.wait_until_empty()
        gauges = ring.gauges("scheduler")
        if gauges["accepted_tokens"] > before:
            return gauges
    pytest.fail("no draft token was ever accepted")


def test_the_same_with_and_without_and_where_the_scheduler_dies(
    ring: RingClient, plain_ring: RingClient, requests: list[dict[str, Any]]
):
    expected = plain_ring.generate_all(requests)
    gauges = accept_drafts(ring, requests, expected)
    assert gauges["draft_tokens"] >= gauges["accepted_tokens"]
    disturb(Killer(ring, "scheduler", (200, 900), signal.SIGKILL), ring, requests, expected)
    assert counter(ring, "vllm:spec_decode_num_accepted_tokens_total") >= gauges["accepted_tokens"]
    assert counter(plain_ring, "vllm:spec_decode_num_draft_tokens_total") == 0


def test_the_same_with_a_draft_model_and_where_the_scheduler_dies(
    tiny_checkpoint: Path, start_ring: Any, plain_ring: RingClient, requests: list[dict[str, Any]]
):
    """The model is its own draft model: this saves no time, so it rarely drafts, but its drafts are right."""
    ring = start_ring(tiny_checkpoint, *FLAGS, "--speculative", "draft", "--draft-model", str(tiny_checkpoint))
    expected = plain_ring.generate_all(requests)
    gauges = accept_drafts(ring, requests, expected)
    assert gauges["accepted_tokens"] > 0.9 * gauges["draft_tokens"]
    disturb(Killer(ring, "scheduler", (300,), signal.SIGKILL), ring, requests, expected)


def test_what_a_grammar_forces_comes_in_fewer_steps(ring: RingClient, plain_ring: RingClient):
    text = "QXZJ" * 10  # no token has two of these letters, so the model has no choice
    requests = [
        body([70, 71], max_tokens=60, seed=seed, temperature=1.0, guided_regex=f"[ab]{{3}}{text}[cd]")
        for seed in (1, 2)
    ]
    expected = plain_ring.generate_all(requests)
    assert text in expected[0].text
    accept_drafts(ring, requests, expected)


def test_logprobs_are_the_same(ring: RingClient, plain_ring: RingClient):
    request = body([60, 9, 70] * 12, max_tokens=40, ignore_eos=True, logprobs=2, presence_penalty=0.1, stream=False)
    (plain, drafted) = (
        httpx.post(f"{one.url}/generate", json=request, timeout=60).json() for one in (plain_ring, ring)
    )
    assert drafted["token_ids"] == plain["token_ids"]
    pairs = list(zip(drafted["logprobs"], plain["logprobs"], strict=True))
    assert len(pairs) == 40
    assert all(now == before for now, before in pairs)
