"""Processes are killed while new requests keep arriving: none is rejected, and every text is exact."""

import asyncio
import os
import random
import signal
import time
from typing import Any

import httpx
import pytest

from tests.ring.client import Generated, RingClient, body, collect, generated

pytestmark = pytest.mark.ring

NUM_CLIENTS = 6
NUM_REQUESTS = 12
KILLS = ("tokenizer", "scheduler", "detokenizer")


@pytest.fixture(scope="module")
def ring(restarted_ring: RingClient) -> RingClient:
    return restarted_ring


def make_requests() -> list[dict[str, Any]]:
    """Short requests, so that many arrive; sampled and greedy, text and ids, streamed and not."""
    rng = random.Random(7)
    return [
        body(
            "Once upon" if index % 3 == 0 else [rng.randrange(3, 250) for _ in range(20)],
            max_tokens=rng.randrange(5, 30),
            temperature=0.8 if index % 2 else 0.0,
            seed=index,
            ignore_eos=True,
            stream=index % 4 != 3,
        )
        for index in range(NUM_REQUESTS)
    ]


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return make_requests()


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    async def run() -> list[Generated]:
        async with ring.connect() as client:
            return [await fetch(client, request) for request in requests]

    return asyncio.run(run())


async def fetch(client: httpx.AsyncClient, request: dict[str, Any]) -> Generated:
    """Returns a whole reply. Raises an `AssertionError` with any other response."""
    if request["stream"]:
        return await collect(client, request)
    reply = await client.post("/generate", json=request)
    assert reply.status_code == 200, f"{reply.status_code}: {reply.text}"
    return generated(reply.json())


def check_exact(got: Generated, expected: Generated) -> None:
    same = [getattr(got, name) == getattr(expected, name) for name in ("text", "token_ids", "finish_reason")]
    assert all(same), f"{got} instead of {expected}"


def test_no_death_is_an_error_of_a_new_request(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    is_over = False
    num_ended = 0

    async def be_client(client: httpx.AsyncClient, number: int) -> None:
        nonlocal num_ended
        rng = random.Random(number)
        while not is_over:
            index = rng.randrange(NUM_REQUESTS)
            check_exact(await fetch(client, requests[index]), undisturbed[index])
            num_ended += 1

    async def kill_all() -> None:
        nonlocal is_over
        try:
            for process in KILLS:
                num_before = num_ended
                num_restarts = await asyncio.to_thread(ring.kill, process)
                await asyncio.to_thread(ring.wait_for_restart, process, num_restarts)
                async with asyncio.timeout(60):
                    while num_ended < num_before + NUM_CLIENTS:
                        await asyncio.sleep(0.02)
        finally:
            is_over = True

    async def run() -> None:
        async with ring.connect() as client, asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(be_client(client, number))
            group.create_task(kill_all())

    asyncio.run(run())
    ring.wait_until_empty()


@pytest.mark.parametrize("process", ["tokenizer", "scheduler", "detokenizer"])
def test_requests_that_a_dying_process_has_in_hand(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated], process: str
):
    """Requests arrive while it is stopped. They may be in its socket, but it forwards none."""
    num_restarts = ring.kill(process, signal.SIGSTOP)
    pid = ring.status(process)["pid"]

    async def run() -> list[Generated]:
        async with ring.connect() as client:
            replies = asyncio.gather(*(fetch(client, request) for request in requests))
            while (await client.get("/load")).json()["server_load"] < NUM_REQUESTS:
                await asyncio.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            return await replies

    for got, expected in zip(asyncio.run(run()), undisturbed, strict=True):
        check_exact(got, expected)
    ring.wait_for_restart(process, num_restarts)
    ring.wait_until_empty()


def test_the_tokenizer_answers_questions_when_it_is_back(ring: RingClient):
    question = {"prompt": "Once upon a time"}
    before = httpx.post(f"{ring.url}/tokenize", json=question, timeout=60).json()
    num_restarts = ring.kill("tokenizer")
    while ring.status("tokenizer")["num_restarts"] < num_restarts:
        time.sleep(0.02)
    reply = httpx.post(f"{ring.url}/tokenize", json=question, timeout=60)
    assert (reply.status_code, reply.json()) == (200, before)
    ring.wait_for_restart("tokenizer", num_restarts)
