"""200 mixed requests through a cache of 40 pages end with every page free or cached and every map empty."""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ring.client import RingClient, body, events_of

pytestmark = pytest.mark.ring

NUM_REQUESTS = 200
NUM_AT_ONCE = 48
CONTEXT = 96


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    flags = ("--num-pages", "40", "--block-size", "4", "--max-model-len", str(CONTEXT), "--max-num-seqs", "24")
    return start_ring(tiny_checkpoint, "--dtype", "float32", *flags)


def mixed_request(rng: random.Random, prefixes: list[list[int]]) -> dict[str, Any]:
    prompt = rng.choice(prefixes)[: rng.randrange(0, 40)] + [rng.randrange(3, 250) for _ in range(rng.randrange(1, 20))]
    return body(
        prompt,
        max_tokens=rng.choice([1, 3, 8, 20, 60]),
        temperature=rng.choice([0.0, 0.7, 1.5]),
        top_k=rng.choice([0, 5]),
        top_p=rng.choice([1.0, 0.8]),
        ignore_eos=rng.random() < 0.5,
        cache_salt=rng.choice(["a", "b"]),
        stop=rng.choice([[], ["e"], ["th", "ing "]]),
        stop_token_ids=rng.choice([[], [17, 18, 19]]),
    )


async def one(client: httpx.AsyncClient, rng: random.Random, request: dict[str, Any], ends: dict[str, int]) -> None:
    """Runs one request to its end, or disconnects in the middle. Counts the outcome."""
    leaves_after = rng.randrange(0, 8) if rng.random() < 0.3 else None
    num_tokens, reason, num_events = 0, "left", 0
    stream = events_of(client, request)
    async for event in stream:
        assert "error" not in event, event
        num_tokens += len(event["token_ids"])
        num_events += 1
        if event["finish_reason"]:
            reason = event["finish_reason"]
            assert event["usage"]["completion_tokens"] == num_tokens
        elif leaves_after is not None and num_events > leaves_after:
            break
    await stream.aclose()
    ends[reason] = ends.get(reason, 0) + 1


@pytest.mark.timeout(240)
def test_nothing_is_left(ring: RingClient):
    rng = random.Random(11)
    prefixes = [[rng.randrange(3, 250) for _ in range(40)] for _ in range(3)]
    ends: dict[str, int] = {}

    async def worker(client: httpx.AsyncClient, requests: list[dict[str, Any]]) -> None:
        while requests:
            await one(client, rng, requests.pop(), ends)

    async def run() -> None:
        requests = [mixed_request(rng, prefixes) for _ in range(NUM_REQUESTS)]
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=ring.url, timeout=60.0, limits=limits) as client:
            await asyncio.gather(*(worker(client, requests) for _ in range(NUM_AT_ONCE)))

    asyncio.run(run())
    assert sum(ends.values()) == NUM_REQUESTS
    assert min(ends.get(reason, 0) for reason in ("left", "stop", "length")) > 10, ends
    ring.wait_until_empty()
    assert ring.gauges("scheduler")["preemptions"] > 0
