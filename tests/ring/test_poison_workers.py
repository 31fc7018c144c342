"""A request on one of two frontends kills the scheduler: only this request fails, on both frontends."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from extras.faults.messages import ClearFaults, Poison
from messages.columns import pack_int32
from tests.ring.client import RingClient, body
from tests.ring.test_frontend_workers import Stream, begin_on_both
from tests.ring.test_poison import POISON
from tests.ring.test_restart import check_same

pytestmark = pytest.mark.ring

NUM_REQUESTS = 8


@pytest.fixture
def ring(twin_ring: RingClient) -> Iterator[RingClient]:
    twin_ring.instruct("scheduler", Poison("kill", token_ids=pack_int32(POISON)))
    yield twin_ring
    twin_ring.instruct("scheduler", ClearFaults())


def test_the_culprit_is_refused_and_no_one_else(ring: RingClient):
    requests = [
        body([7 + index, 8, 9], max_tokens=200, ignore_eos=True, temperature=index % 2, seed=index)
        for index in range(NUM_REQUESTS)
    ]
    undisturbed = ring.generate_all(requests)
    num_restarts = ring.status("scheduler")["num_restarts"] + 3

    async def run() -> tuple[list[Stream], httpx.Response]:
        async with ring.connect() as client:
            streams, tasks = await begin_on_both(client, requests)
            poison = await client.post("/generate", json=body([5, *POISON, 6], max_tokens=5, stream=False))
            await asyncio.gather(*tasks)
            return streams, poison

    streams, refusal = asyncio.run(run())
    assert refusal.status_code == 500
    assert "reference" in refusal.json()["error"]["message"]
    assert len({stream.block for stream in streams}) == 2
    check_same([stream.result() for stream in streams], [undisturbed[stream.index] for stream in streams])
    ring.wait_for_restart("scheduler", num_restarts)
    assert ring.status("scheduler")["num_restarts"] == num_restarts
    ring.wait_until_empty()
