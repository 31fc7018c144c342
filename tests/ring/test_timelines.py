"""Timelines of real requests: complete and in order through a restart, and shown while processes are stopped."""

import asyncio
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ring.client import RingClient, body, collect

pytestmark = pytest.mark.ring

NUM_REQUESTS = 1000
NUM_AT_ONCE = 32
NUM_BEFORE_KILL = 300
TIMEOUT_S = 60.0

FLAGS = ("--dtype", "float32", "--max-num-seqs", "16", "--restart-hold-s", "60", "--max-model-len", "256")

FIRST_STAGES = ["tokenizer_queue", "tokenize", "scheduler_inbox", "queue", "prefill", "decode"]
LAST_STAGES = ["detokenize", "deliver", "send"]


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    return start_ring(tiny_checkpoint, *FLAGS)


def shown(ring: RingClient, name: str) -> dict[str, Any]:
    reply = httpx.get(f"{ring.url}/requests/{name}", timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return choice


def check_whole(timeline: dict[str, Any]) -> None:
    """Complete: every stage of the last attempt, in order. Monotonic: no gap and no step back, up to rounding."""
    stages = timeline["stages"]
    last = [stage["stage"] for stage in stages if stage["attempt"] == timeline["attempts"] - 1]
    expected = [*FIRST_STAGES, *LAST_STAGES]
    assert [stage for stage in last if stage not in ("accept", "hold", "restart", "preempted")] == expected, last
    assert stages[0]["begin_ms"] == 0
    for before, after in pairwise(stages):
        assert before["duration_ms"] >= 0
        assert abs(before["begin_ms"] + before["duration_ms"] - after["begin_ms"]) < 0.002
    assert abs(sum(stage["duration_ms"] for stage in stages) - timeline["total_ms"]) < 1
    ends_ms = timeline["step_ends_ms"]
    assert ends_ms == sorted(ends_ms)
    assert timeline["chunks"]
    assert timeline["output_tokens"] == timeline["expected_tokens"]


def test_every_timeline_is_complete_through_a_restart(ring: RingClient):
    """The scheduler is killed among a thousand requests."""
    num_tokens = [random.Random(number).randrange(1, 24) for number in range(NUM_REQUESTS)]
    elapsed_ms: dict[int, float] = {}

    async def run() -> None:
        numbers = iter(range(NUM_REQUESTS))

        async def be_client(client: httpx.AsyncClient) -> None:
            for number in numbers:
                prompt = [3 + (number * 7 + place) % 240 for place in range(5 + number % 40)]
                request = body(prompt, max_tokens=num_tokens[number], ignore_eos=True, request_id=f"t{number}")
                begin_s = time.monotonic()
                await collect(client, {**request, "stream": True})
                elapsed_ms[number] = 1000 * (time.monotonic() - begin_s)

        async with ring.connect() as client, asyncio.TaskGroup() as group:
            for _ in range(NUM_AT_ONCE):
                group.create_task(be_client(client))
            while len(elapsed_ms) < NUM_BEFORE_KILL:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(ring.kill, "scheduler")

    asyncio.run(run())
    ring.wait_until_empty()
    listed = httpx.get(f"{ring.url}/requests", params={"limit": 1000, "state": "finished"}, timeout=TIMEOUT_S).json()
    assert listed["num_found"] == NUM_REQUESTS
    num_continued = 0
    for line in listed["requests"]:
        number = int(line["request_id"].removeprefix("t"))
        timeline = shown(ring, line["request_id"])
        check_whole({**timeline, "expected_tokens": num_tokens[number]})
        assert timeline["total_ms"] <= elapsed_ms[number] + 1
        num_continued += timeline["attempts"] > 1
    assert num_continued > 0


def test_a_stopped_scheduler_does_not_stop_the_answers(ring: RingClient):
    """What was heard before is shown with its age, and what it has not taken is told apart from what it has."""
    pid = ring.status("scheduler")["pid"]

    async def run() -> None:
        async with ring.connect() as client:
            streams = [
                asyncio.create_task(collect(client, {**body([9, number], max_tokens=200), "request_id": f"s{number}"}))
                for number in range(20)
            ]
            while (await client.get("/requests", params={"stage": "queue"})).json()["num_found"] < 4:
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)
            try:
                late = asyncio.create_task(collect(client, {**body([5, 6], max_tokens=2), "request_id": "late"}))
                await check_stopped(client)
            finally:
                os.kill(pid, signal.SIGCONT)
            await asyncio.gather(late, *streams)

    asyncio.run(run())
    ring.wait_until_empty()


async def check_stopped(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (reply := await client.get("/requests/late")).status_code != 200 or (
            reply.json()["choices"][0]["stage"] != "scheduler_inbox"
            or "has given no sign" not in reply.json()["choices"][0]["waits"]["text"]
        ):
            await asyncio.sleep(0.02)
    (late,) = reply.json()["choices"]
    assert late["waits"]["text"].startswith("the scheduler has not taken it yet: scheduler has given no sign for")
    assert late["prompt_tokens"] == 2
    listed = (await client.get("/requests", params={"stage": "queue"})).json()
    assert listed["scheduler_heard_s"] > 1
    waits = listed["requests"][-1]["waits"]
    assert waits["reason"] == "process"
    assert "all 16 rows are taken" in waits["text"]
    assert waits["heard_s"] > 1
