"""Large or hostile requests of one client on a real server: others are still answered, and nothing is left."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.ring.client import RingClient

pytestmark = pytest.mark.ring

NUM_LARGE, NUM_TRIES = 8, 20
LARGE_TEXT = "To be, or not to be, that is the question. " * 45_000
"""1.9 million characters, which are tokenized before they are cut."""

COMPLETIONS = "/v1/completions"
SMALL = {"prompt": "To be", "max_tokens": 2}
LARGE = {"prompt": LARGE_TEXT, "truncate_prompt_tokens": 8, "max_tokens": 1}


@pytest.fixture(scope="module")
def ring(bard_ring: RingClient) -> RingClient:
    return bard_ring


async def post(client: httpx.AsyncClient, body: dict[str, Any], path: str = COMPLETIONS) -> int:
    return (await client.post(path, json=body)).status_code


async def begin_large(ring: RingClient, client: httpx.AsyncClient) -> list["asyncio.Task[int]"]:
    """Returns large requests that a beat of the tokenizer has shown. A quick one may fit between two beats."""
    for _ in range(NUM_TRIES):
        large = [asyncio.create_task(post(client, LARGE)) for _ in range(NUM_LARGE)]
        while not all(task.done() for task in large):
            health = (await client.get("/health")).json()
            if health["processes"]["tokenizer"]["gauges"].get("chars_in_hand", 0) >= len(LARGE_TEXT):
                return large
            await asyncio.sleep(0.02)
    raise AssertionError("the tokenizer was never seen with a large text")


def test_small_requests_overtake_large_ones(ring: RingClient):
    async def run() -> None:
        async with ring.connect() as client:
            for _ in range(NUM_TRIES):
                large = await begin_large(ring, client)
                assert await post(client, SMALL) == 200
                has_overtaken = not all(task.done() for task in large)
                assert await asyncio.gather(*large) == [200] * NUM_LARGE
                if has_overtaken:
                    return
            raise AssertionError("no small request was answered before large ones")

    asyncio.run(run())


def test_nothing_is_left_of_what_a_client_that_has_left_requested(ring: RingClient):
    async def run() -> None:
        async with ring.connect() as client:
            large = await begin_large(ring, client)
            for task in large:
                task.cancel()
            await asyncio.gather(*large, return_exceptions=True)
            assert await post(client, SMALL) == 200
            await asyncio.to_thread(ring.wait_until_empty)

    asyncio.run(run())


HOSTILE: dict[str, dict[str, Any]] = {
    "bad words": {"prompt": [f"p{i}" for i in range(8)], "n": 16, "bad_words": ["abc " * 256] * 1000},
    "stop strings": {"prompt": "x", "n": 16, "stop": ["x" * 100_000] * 60},
    "text beyond the context": {"prompt": "hello there " * 1_000_000, "n": 16},
    "ids beyond the context": {"prompt": [1] * 4_000_000},
    "lists": {"prompt": [[1]] * 1_000_000},
    "prompt logprobs": {"prompt": ["x" * 4000] * 4, "n": 16, "prompt_logprobs": 20},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused_while_others_are_served(ring: RingClient, name: str):
    async def run() -> None:
        async with ring.connect() as client:
            statuses = await asyncio.gather(*[post(client, {"max_tokens": 1, **HOSTILE[name]}), post(client, SMALL)])
            assert statuses == [400, 200]

    asyncio.run(run())


def test_ids_that_are_provided_again_and_again_cost_no_more(ring: RingClient):
    async def run() -> None:
        async with ring.connect() as client:
            ids = {"allowed_token_ids": [7, 8] * 500_000, "stop_token_ids": [9] * 500_000}
            reply = await client.post(COMPLETIONS, json={"prompt": "x", "n": 16, "max_tokens": 4, **ids})
            assert reply.status_code == 200
            assert await post(client, SMALL) == 200

    asyncio.run(run())
