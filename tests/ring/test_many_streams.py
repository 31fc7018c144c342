"""64 streams at once, half of them cut off at random: the others stay exact, and no process keeps any state."""

import asyncio
import random
from typing import Any

import httpx
import pytest

from tests.ring.client import Generated, RingClient, body, collect, events_of

pytestmark = pytest.mark.ring

MAX_TRIES = 10


@pytest.fixture(scope="module")
def ring(plain_ring: RingClient) -> RingClient:
    return plain_ring


async def cut_off(client: httpx.AsyncClient, request: dict[str, Any], num_events: int) -> None:
    """Reads `num_events` events of a stream and closes the connection."""
    stream = events_of(client, request)
    while num_events and await anext(stream, None):  # an event may have several tokens
        num_events -= 1
    await stream.aclose()


def requests_for(rng: random.Random, num_requests: int) -> list[dict[str, Any]]:
    shared = [rng.randrange(3, 250) for _ in range(48)]
    return [
        body(
            shared[: rng.randrange(0, 48)] + [rng.randrange(3, 250) for _ in range(rng.randrange(1, 30))],
            max_tokens=rng.randrange(20, 100),
            ignore_eos=True,
            temperature=0.0 if index % 2 else 0.8,
            seed=index,
        )
        for index in range(num_requests)
    ]


def test_survivors_are_exact_and_nothing_is_left(ring: RingClient):
    rng = random.Random(7)
    requests = requests_for(rng, 64)
    is_cut = [index % 2 == 0 for index in range(64)]
    alone = [
        ring.generate_all([request])[0] if not cut else None for request, cut in zip(requests, is_cut, strict=True)
    ]

    async def run() -> list[Generated | None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=ring.url, timeout=60.0, limits=limits) as client:
            work = [
                cut_off(client, request, rng.randrange(0, 15)) if cut else collect(client, request)
                for request, cut in zip(requests, is_cut, strict=True)
            ]
            return await asyncio.gather(*work)

    together = asyncio.run(run())
    for before, after in zip(alone, together, strict=True):
        if before is not None and after is not None:
            assert (after.token_ids, after.text) == (before.token_ids, before.text)
    # Gauges are sent with the beats, once a second and when work begins or ends.
    ring.wait_until_empty()


def test_a_client_that_leaves_ends_its_request(ring: RingClient):
    """A slow client may disconnect only after the end, so there are several attempts."""
    request = body([5, 6, 7], max_tokens=250, ignore_eos=True)

    async def run() -> None:
        async with ring.connect() as client:
            await cut_off(client, request, num_events=3)

    for _ in range(MAX_TRIES):
        steps_before = ring.gauges("scheduler")["steps"]
        asyncio.run(run())
        while ring.gauges("scheduler")["running"]:
            pass
        if ring.gauges("scheduler")["steps"] - steps_before < 200:
            return
    raise AssertionError("they ran to their ends, as if nobody had left")
