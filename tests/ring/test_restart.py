"""A process is killed or stopped in mid-stream: every stream continues with the same text and ids, nothing is left."""

import asyncio
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import httpx
import pytest

from messages.ring.requests import YIELDING_PRIORITY
from tests.ring.client import TIMEOUT_S, Generated, RingClient, body, events_of, generated

pytestmark = pytest.mark.ring

NUM_STREAMS = 8
MAX_TRIES = 5


@pytest.fixture(scope="module")
def ring(restarted_ring: RingClient) -> RingClient:
    return restarted_ring


class Killer:
    """Kills `process` when the streams have received this many tokens in total."""

    def __init__(self, ring: RingClient, process: str, at_tokens: tuple[int, ...], how: signal.Signals):
        self.process = process
        self.num_restarts = 0
        self._ring = ring
        self._all_at_tokens = at_tokens
        self._how = how
        self.arm()

    def arm(self) -> None:
        self._at_tokens = list(self._all_at_tokens)
        self._num_tokens = 0

    def __call__(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        if self._at_tokens and self._num_tokens >= self._at_tokens[0]:
            self._at_tokens.pop(0)
            self.num_restarts = self._ring.kill(self.process, self._how, self.num_restarts)


def mixed_requests(ring: RingClient) -> list[dict[str, Any]]:
    """Greedy and sampled requests, some with a late stop string, which half of those include."""
    rng = random.Random(5)
    requests = [
        body(
            "über 😀 — " if index % 4 == 3 else [rng.randrange(3, 250) for _ in range(rng.randrange(1, 60))],
            max_tokens=rng.randrange(100, 180),
            ignore_eos=True,
            temperature=0.0 if index % 3 == 0 else 0.9,
            seed=index,
        )
        for index in range(NUM_STREAMS)
    ]
    for index, (request, got) in enumerate(zip(requests, ring.generate_all(requests), strict=True)):
        if index % 2:
            late = len(got.text) * 3 // 4
            request["stop"] = [got.text[late : late + 3], "never to be seen"]
            request["include_stop_str_in_output"] = index % 4 == 1
    return requests


@pytest.fixture(scope="module")
def requests(ring: RingClient) -> list[dict[str, Any]]:
    return mixed_requests(ring)


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    replies = ring.generate_all(requests)
    assert {reply.finish_reason for reply in replies} == {"stop", "length"}
    assert all(reply.attempts == 1 for reply in replies)
    assert any("\ufffd" in reply.text for reply in replies), "no token was part of a character"
    return replies


def check_same(got: list[Generated], expected: list[Generated]) -> None:
    for index, (now, before) in enumerate(zip(got, expected, strict=True)):
        assert now.token_ids == before.token_ids, f"stream {index}, {now.attempts} attempts"
        assert now.text == before.text, f"stream {index}, {now.attempts} attempts"
        assert now.finish_reason == before.finish_reason
        for count in ("prompt_tokens", "completion_tokens"):
            assert now.usage[count] == before.usage[count]


def disturb(killer: Killer, ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]) -> None:
    """Runs the streams with the killer. Retries if a slow client saw their tokens only at the end."""
    for _ in range(MAX_TRIES):
        killer.arm()
        got = ring.generate_all(requests, killer)
        check_same(got, undisturbed)
        ring.wait_for_restart(killer.process, killer.num_restarts)
        ring.wait_until_empty()
        if max(reply.attempts for reply in got) > 1 or killer.process == "tokenizer":  # the streams have exceeded it
            return
    raise AssertionError(f"the {killer.process} never died in mid-stream")


@pytest.mark.parametrize("process", ["tokenizer", "scheduler", "detokenizer"])
def test_killed_in_mid_stream(
    ring: RingClient, process: str, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    killer = Killer(ring, process, (NUM_STREAMS * 10, NUM_STREAMS * 60), signal.SIGKILL)
    disturb(killer, ring, requests, undisturbed)


@pytest.mark.parametrize("process", ["scheduler", "detokenizer"])
def test_stopped_in_mid_stream(
    ring: RingClient, process: str, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    disturb(Killer(ring, process, (NUM_STREAMS * 20,), signal.SIGSTOP), ring, requests, undisturbed)


def test_a_tokenizer_that_hangs_with_requests_in_its_socket(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    num_restarts = ring.kill("tokenizer", signal.SIGSTOP)
    check_same(ring.generate_all(requests), undisturbed)
    ring.wait_for_restart("tokenizer", num_restarts)
    ring.wait_until_empty()


def test_a_reply_in_one_piece(ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]):
    """The client sees nothing of these until the end, so the kill depends on the tokens of another stream."""

    async def run() -> list[Generated]:
        async with ring.connect() as client:
            whole = asyncio.gather(
                *(client.post("/generate", json={**request, "stream": False}) for request in requests)
            )
            async for _ in events_of(client, body([5, 6, 7], max_tokens=15, ignore_eos=True)):
                pass
            ring.kill("scheduler")
            return [generated(reply.json()) for reply in await whole]

    for _ in range(MAX_TRIES):
        got = asyncio.run(run())
        check_same(got, undisturbed)
        ring.wait_until_empty()
        if max(reply.attempts for reply in got) > 1:
            return
    raise AssertionError("the scheduler never died before the replies")


def test_clients_that_leave_while_a_process_is_away(ring: RingClient, requests: list[dict[str, Any]]):
    num_restarts = ring.status("scheduler")["num_restarts"] + 1

    async def leave(client: httpx.AsyncClient, request: dict[str, Any], *, is_killer: bool) -> None:
        stream = events_of(client, request)
        await anext(stream)
        if is_killer:
            ring.kill("scheduler")
        while ring.status("scheduler")["num_restarts"] < num_restarts:
            await asyncio.sleep(0.01)
        await stream.aclose()

    async def run() -> None:
        async with ring.connect() as client:
            await asyncio.gather(
                *(leave(client, request, is_killer=not index) for index, request in enumerate(requests))
            )

    asyncio.run(run())
    ring.wait_for_restart("scheduler", num_restarts)
    ring.wait_until_empty()


@pytest.mark.parametrize(
    "died",
    [
        {"frontend": signal.SIGKILL},
        {"scheduler": signal.SIGKILL, "frontend": signal.SIGKILL},
        {"detokenizer": signal.SIGKILL, "frontend": signal.SIGKILL},
        {"tokenizer": signal.SIGSTOP, "frontend": signal.SIGKILL},
    ],
)
def test_a_dead_frontend_accepts_again_and_its_orphans_end(
    ring: RingClient,
    requests: list[dict[str, Any]],
    undisturbed: list[Generated],
    died: dict[str, signal.Signals],
):
    long = [{**request, "max_tokens": 190, "stop": []} for request in requests]
    assert any(has_orphans(ring, long, died) for _ in range(5)), "all streams had ended each time"
    check_same(ring.generate_all(requests), undisturbed)
    ring.wait_until_empty()


def has_orphans(ring: RingClient, requests: list[dict[str, Any]], died: dict[str, signal.Signals]) -> bool:
    """Kills all these processes at once during the requests. Returns whether any had not ended by then."""
    before, expected = {process: ring.status(process) for process in died}, dict[str, int]()

    def kill(num_tokens: int) -> None:
        if not expected:
            for process, how in died.items():
                os.kill(before[process]["pid"], how)
                expected[process] = before[process]["num_restarts"] + 1

    try:
        ring.generate_all(requests, kill)
    except (httpx.TransportError, AssertionError):
        return True
    else:
        return False
    finally:
        for process, num_restarts in expected.items():
            ring.wait_for_restart(process, num_restarts)
        ring.wait_until_empty()


def test_paused_lines_continue_exactly_in_the_next_scheduler(ring: RingClient):
    """Requests with the priority of batches, which yield to streams; then their scheduler dies."""
    sampling = {"max_tokens": 150, "ignore_eos": True}
    lines = [body([5 + number, 6, 7, 8], **sampling, priority=YIELDING_PRIORITY) for number in range(16)]
    stream = body([9, 8, 7], **sampling)
    *alone, stream_alone = ring.generate_all([*lines, stream])

    def was_paused_in_the_dead_scheduler(name: str) -> bool:
        (line,) = httpx.get(f"{ring.url}/requests/{name}", timeout=TIMEOUT_S).json()["choices"]
        first = [stage["stage"] for stage in line["stages"] if stage["attempt"] == 0]
        return line["attempts"] > 1 and "preempted" in first

    def kill_amid_paused_lines(number: int, pool: ThreadPoolExecutor) -> bool:
        """Streams begin when all lines have tokens. False if all lines had ended before the scheduler died."""
        names, have_begun = [f"{number}-{index}" for index in range(len(lines))], Event()
        named = [{**line, "request_id": name} for line, name in zip(lines, names, strict=True)]
        batch = pool.submit(ring.generate_disturbed, named, have_begun.set)
        have_begun.wait(TIMEOUT_S)
        streams = ring.generate_disturbed([stream] * 3, partial(ring.kill, "scheduler"))
        assert {reply.text for reply in streams} == {stream_alone.text}
        assert [reply.text for reply in batch.result()] == [reply.text for reply in alone]
        ring.wait_until_empty()
        return any(was_paused_in_the_dead_scheduler(name) for name in names)

    with ThreadPoolExecutor(max_workers=1) as pool:
        assert any(kill_amid_paused_lines(number, pool) for number in range(MAX_TRIES)), "no row was paused"
