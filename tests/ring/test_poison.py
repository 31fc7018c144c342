"""A request that really kills the scheduler: it alone is refused, the streams beside it go on and stay exact."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from messages.admin import ClearFaults, Poison
from messages.columns import pack_int32
from tests.ring.client import Generated, RingClient, body, collect

pytestmark = pytest.mark.ring

NUM_OTHERS = 15
POISON = [319, 318, 319, 318, 319]
"""A row of token ids that no other prompt has."""


@pytest.fixture
def ring(faulty_ring: RingClient) -> Iterator[RingClient]:
    faulty_ring.instruct("scheduler", Poison("kill", token_ids=pack_int32(POISON)))
    yield faulty_ring
    faulty_ring.instruct("scheduler", ClearFaults())


def test_the_culprit_is_refused_and_nobody_else(ring: RingClient):
    requests = [
        body([7 + index, 8, 9], max_tokens=200, ignore_eos=True, temperature=index % 2, seed=index)
        for index in range(NUM_OTHERS)
    ]
    undisturbed = ring.generate_all(requests)
    num_restarts = ring.status("scheduler")["num_restarts"] + 3

    async def run() -> tuple[list[Generated], httpx.Response]:
        async with ring.connect() as client:
            has_begun = asyncio.Event()
            streams = [asyncio.create_task(collect(client, request, lambda _: has_begun.set())) for request in requests]
            await has_begun.wait()
            poison = await client.post("/generate", json=body([5, *POISON, 6], max_tokens=5, stream=False))
            return await asyncio.gather(*streams), poison

    got, refusal = asyncio.run(run())
    assert refusal.status_code == 500
    assert "reference" in refusal.json()["error"]["message"]
    for now, before in zip(got, undisturbed, strict=True):
        assert (now.text, now.token_ids) == (before.text, before.token_ids)
    assert max(reply.attempts for reply in got) >= 3
    ring.wait_for_restart("scheduler", num_restarts)
    assert ring.status("scheduler")["num_restarts"] == num_restarts
    ring.wait_until_empty()
