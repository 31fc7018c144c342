"""Processes are replaced on command under load: no request fails, and all texts and ids equal the undisturbed run."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from tests.ring.client import OPERATOR, TIMEOUT_S, Generated, RingClient, body, collect
from tests.ring.test_restart import MAX_TRIES, check_same

pytestmark = pytest.mark.ring

NUM_STREAMS = 4
MAX_PAUSE_S = 0.2
"""Pause of a client between its requests, as long as its last one, so that at any time half of them run.

Without it the ring would work all the time while a process starts.
"""

COMMAND_TIMEOUT_S = 90.0
ALL = ("tokenizer", "detokenizer", "scheduler", "frontend")


@pytest.fixture(scope="module")
def ring(restarted_ring: RingClient) -> RingClient:
    return restarted_ring


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return make_requests(NUM_STREAMS, max_tokens=150)


def make_requests(num: int, max_tokens: int) -> list[dict[str, Any]]:
    """Greedy and sampled requests, as text and ids; some get less than half of `max_tokens`."""
    rng = random.Random(7)
    return [
        body(
            "über 😀 — " if index % 4 == 3 else [rng.randrange(3, 250) for _ in range(rng.randrange(1, 60))],
            max_tokens=rng.randrange(max_tokens * 2 // 5, max_tokens),
            ignore_eos=True,
            temperature=0.0 if index % 2 == 0 else 0.9,
            seed=index,
        )
        for index in range(num)
    ]


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    return ring.generate_all(requests)


class Load:
    """Clients that repeat their request until stopped, each time on a new connection. Every reply is checked."""

    def __init__(self, ring: RingClient, requests: list[dict[str, Any]], expected: list[Generated]):
        self._ring = ring
        self._requests = requests
        self._expected = expected
        self._is_over = False
        self.num_replies = 0
        self.num_attempts = 0
        self.longest_pause_s = 0.0

    @property
    def num_continued(self) -> int:
        """Number of attempts that were continuations."""
        return self.num_attempts - self.num_replies

    async def run_during(self, act: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]) -> None:
        """Keeps all clients busy while `act` runs. Fails if one of them gets a wrong reply."""
        async with self._ring.connect() as client, asyncio.TaskGroup() as clients:
            for index in range(len(self._requests)):
                clients.create_task(self._be_client(client, index))
            try:
                await act(client)
            finally:
                self._is_over = True

    async def wait_for_replies(self, num_more: int) -> None:
        """Waits until every client has received a token and there are `num_more` more complete replies."""
        target = self.num_replies + num_more
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            while self.num_replies < target:
                await asyncio.sleep(0.02)

    async def _be_client(self, client: httpx.AsyncClient, index: int) -> None:
        while not self._is_over:
            start_s = last_s = time.monotonic()

            def record(num_tokens: int) -> None:
                nonlocal last_s
                now_s = time.monotonic()
                self.longest_pause_s, last_s = max(self.longest_pause_s, now_s - last_s), now_s

            got = await collect(client, self._requests[index], record)
            check_same([got], [self._expected[index]])
            self.num_replies += 1
            self.num_attempts += got.attempts
            await asyncio.sleep(min(MAX_PAUSE_S, time.monotonic() - start_s))


async def replace(client: httpx.AsyncClient, process: str, **params: float) -> None:
    """Replaces `process` and waits until the old one is gone."""
    before = await processes(client)
    reply = await client.post(f"/admin/restart/{process}", params=params, headers=OPERATOR, timeout=COMMAND_TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    async with asyncio.timeout(COMMAND_TIMEOUT_S):
        while set(now := await processes(client)) != set(before):
            await asyncio.sleep(0.05)
    assert now[process]["incarnation"] == before[process]["incarnation"] + 1
    assert now[process]["pid"] != before[process]["pid"]


async def processes(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    reply = await client.get("/admin/processes", headers=OPERATOR)
    assert reply.status_code == 200, reply.text
    return {process["name"]: process for process in reply.json()["processes"]}


def test_all_four_one_after_another_under_load(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    load = Load(ring, requests, undisturbed)

    async def act(client: httpx.AsyncClient) -> None:
        for _ in range(MAX_TRIES):  # at each moment of a replacement, all clients may be between two requests
            for process in ALL:
                await load.wait_for_replies(NUM_STREAMS)
                load.longest_pause_s = 0.0
                await replace(client, process)
                print(f"{process}: longest pause of a stream {load.longest_pause_s:.3f} s")
            await load.wait_for_replies(NUM_STREAMS)
            if load.num_continued:
                return
        raise AssertionError("no stream was continued")

    asyncio.run(load.run_during(act))
    ring.wait_until_empty()


def test_three_ordered_restarts_make_no_request_a_suspect(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    """As three deaths of the scheduler would: these requests come to no token between them.

    No row may finish in the old one, so all continue in the new one.
    """

    async def run() -> list[Generated]:
        async with ring.connect() as client:
            streams = [asyncio.create_task(collect(client, request)) for request in requests]
            for _ in range(3):
                await replace(client, "scheduler", timeout_s=0.0)
            return list(await asyncio.gather(*streams))

    check_same(asyncio.run(run()), undisturbed)
    ring.wait_until_empty()


def test_a_frontend_leaves_after_its_last_stream(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    """The old one finishes its streams while the new one serves others and the ring behind both is replaced."""

    async def run() -> tuple[list[Generated], list[Generated]]:
        async with ring.connect() as client:
            begun = asyncio.Event()
            old = [asyncio.create_task(collect(client, request, lambda _: begun.set())) for request in requests]
            await begun.wait()
            await client.post("/admin/restart/frontend", headers=OPERATOR)
            new = [asyncio.create_task(collect(client, request)) for request in requests]
            reply = await client.post("/admin/restart/detokenizer", headers=OPERATOR, timeout=COMMAND_TIMEOUT_S)
            assert reply.status_code == 200, reply.text
            return list(await asyncio.gather(*old)), list(await asyncio.gather(*new))

    for got in asyncio.run(run()):
        check_same(got, undisturbed)
    wait_until_one_frontend(ring)
    ring.wait_until_empty()


def wait_until_one_frontend(ring: RingClient) -> None:
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while "frontend.old" in ring.health()["processes"]:
        assert time.monotonic() < deadline, "the old frontend does not leave"
        time.sleep(0.05)


def test_an_order_that_cannot_be_carried_out_is_an_error(ring: RingClient):
    url = f"{ring.url}/admin/restart"
    with httpx.Client(headers=OPERATOR, timeout=TIMEOUT_S) as client:
        assert client.post(f"{url}/nobody").status_code == 404
        assert client.post(f"{url}/tokenizer", params={"timeout_s": "soon"}).status_code == 400
        assert client.get(f"{url}/tokenizer").status_code == 405
