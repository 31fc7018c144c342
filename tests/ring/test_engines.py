"""Several engines: requests of a dead engine continue on the others at once, and operators can change the number."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from messages.control.admin import Done, ScaleProcess
from messages.control.processes import worker_number
from supervisor.client.admin_client import AdminClient
from tests.frontend.frontend_run import wait_until
from tests.ring.client import ADMIN_KEY, OPERATOR, TIMEOUT_S, Generated, RingClient
from tests.ring.conftest import RESTART_FLAGS
from tests.ring.test_rolling_restart import COMMAND_TIMEOUT_S, Load, make_requests, processes, replace

pytestmark = pytest.mark.ring

NUM_STREAMS = 8
MAX_TRIES = 5

SERVING = ("ready", "busy")


async def status(client: httpx.AsyncClient, process: str) -> dict[str, Any]:
    return (await client.get("/health")).json()["processes"][process]


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    ring = start_ring(tiny_checkpoint, *RESTART_FLAGS, "--admin-key", ADMIN_KEY, "--data-parallel", "2")
    wait_until(lambda: all(ring.status(name)["state"] in SERVING for name in ("scheduler", "scheduler-2")), 90.0)
    return ring  # which takes requests as soon as one of them serves


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return make_requests(NUM_STREAMS, max_tokens=190)


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    replies = ring.generate_all(requests)
    assert {reply.attempts for reply in replies} == {1}
    return replies


def test_streams_of_a_dead_engine_continue_at_the_other_at_once(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    for num_deaths, victim in enumerate(("scheduler-2", "scheduler"), 1):
        load = Load(ring, requests, undisturbed)
        asyncio.run(load.run_during(partial(kill_and_wait, load, victim)))
        ring.wait_for_restart(victim, 1)
        assert ring.gauges("frontend")["suspects"] == 0, f"after {num_deaths} deaths"
    ring.wait_until_empty()


async def count_streams(client: httpx.AsyncClient, engine: int) -> int:
    """Returns the number of an engine's requests that have received tokens and will get more."""
    reply = await client.get("/requests", params={"stage": "decode"}, headers=OPERATOR)
    return sum(request["engine"] == engine for request in reply.json()["requests"])


async def kill_and_wait(load: Load, victim: str, client: httpx.AsyncClient) -> None:
    """Kills the engine, and returns when streams of it have been continued to their ends; it must not be back then."""
    await load.wait_for_replies(1)
    before, num_before = await status(client, victim), load.num_continued
    async with asyncio.timeout(COMMAND_TIMEOUT_S):
        while await count_streams(client, worker_number(victim)) < 2:
            await asyncio.sleep(0.02)
    os.kill(before["pid"], signal.SIGKILL)
    while (now := await status(client, victim))["state"] in SERVING or load.num_continued == num_before:
        if now["incarnation"] > before["incarnation"] and now["state"] in SERVING:
            return  # so busy a machine that its replies come later than the replacement: they are compared all the same
        await asyncio.sleep(0.02)


def test_the_operator_replaces_and_removes_an_engine_under_load(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    load = Load(ring, requests, undisturbed)

    async def scale(num: int) -> None:
        with AdminClient(ring.run_dir) as line:
            result = await asyncio.to_thread(line.give, ScaleProcess("scheduler", num), COMMAND_TIMEOUT_S)
        assert isinstance(result, Done), result

    async def act(client: httpx.AsyncClient) -> None:
        for _ in range(MAX_TRIES):  # all clients may pause between two requests just then
            await load.wait_for_replies(8)
            await replace(client, "scheduler", timeout_s=60.0)
            await load.wait_for_replies(8)
            if load.num_continued:
                break
        await scale(1)
        assert "scheduler-2" not in await processes(client)
        await load.wait_for_replies(8)
        await scale(2)
        async with asyncio.timeout(COMMAND_TIMEOUT_S):  # if the new engine gets nothing
            while (await processes(client))["scheduler-2"]["gauges"].get("requests", 0) == 0:
                await asyncio.sleep(0.02)

    asyncio.run(load.run_during(act))
    assert load.num_attempts > load.num_replies, "no stream was moved"
    ring.wait_until_empty()


def test_a_prompt_goes_where_its_beginning_is_cached(ring: RingClient):
    """The engines compute the first request of each pair in turn; the second one finds all but its last page."""
    for index in range(4):
        prompt = [20 + index] * 130
        for num_cached in (0, 128):
            assert ring.generate(prompt, max_tokens=4).usage["cached_tokens"] == num_cached
    ring.wait_until_empty()
    params = {"state": "finished", "limit": 8}
    reply = httpx.get(f"{ring.url}/requests", params=params, headers=OPERATOR, timeout=TIMEOUT_S)
    shown = reply.json()["requests"]
    assert sorted(request["engine"] for request in shown) == [1] * 4 + [2] * 4
