"""Several frontends on one port: the death of one ends its own connections, and nobody else's."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from messages.uids import block_of
from tests.ring.client import Generated, RingClient, events_of
from tests.ring.test_restart import check_same
from tests.ring.test_rolling_restart import FLAGS, Load, make_requests, processes, replace

pytestmark = pytest.mark.ring

NUM_STREAMS = 16
MAX_STREAMS = 160
MAX_TRIES = 5
NAMES = {"frontend", "frontend-2", "tokenizer", "scheduler", "detokenizer"}
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    return start_ring(tiny_checkpoint, *FLAGS, "--frontend-workers", "2")


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return [{**request, "max_tokens": 190} for request in make_requests(NUM_STREAMS, max_tokens=150)]


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    return ring.generate_all(requests)


@dataclass
class Stream:
    """What a client of its own connection gets, from request `index` on."""

    index: int
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    block: int = 0
    """Of the uid: whichever frontend gave it has the connection."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    is_broken: bool = False

    async def follow(self, client: httpx.AsyncClient, request: dict[str, Any]) -> None:
        try:
            async for event in events_of(client, request):
                assert "error" not in event, event
                self.block = block_of(event["uid"])
                self.text += event["text"]
                self.token_ids += event["token_ids"]
                self.last = event
                self.has_begun.set()
        except httpx.TransportError:
            self.is_broken = True
        finally:
            self.has_begun.set()

    def result(self) -> Generated:
        last = self.last
        return Generated(
            self.text, self.token_ids, last["finish_reason"], last["usage"], attempts=last["timing"]["attempts"]
        )


async def begin_on_both(
    client: httpx.AsyncClient, requests: list[dict[str, Any]]
) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    """Begins streams, each on a new connection, until each frontend has some; whoever is free takes a connection."""
    streams: list[Stream] = []
    tasks: list[asyncio.Task[None]] = []
    while len(streams) < NUM_STREAMS or len({stream.block for stream in streams}) < 2:
        assert len(streams) < MAX_STREAMS, "one frontend takes every connection"
        stream = Stream(len(streams) % len(requests))
        streams.append(stream)
        tasks.append(asyncio.create_task(stream.follow(client, requests[stream.index])))
        if len(streams) >= NUM_STREAMS:
            await asyncio.wait_for(asyncio.gather(*(each.has_begun.wait() for each in streams)), TIMEOUT_S)
            for task in tasks:
                if task.done():
                    task.result()  # who was refused says why
    return streams, tasks


async def wait_until_back(client: httpx.AsyncClient, name: str, num_restarts: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (status := (await processes(client))[name])["num_restarts"] < num_restarts or status["state"] != "ready":
            await asyncio.sleep(0.05)


def survivors_of(kill: Callable[[], Coroutine[Any, Any, list[Stream]]]) -> list[Stream]:
    """Returns the streams that outlived the death of one frontend: all of the other, and none of the dead one.

    Where a client is slow, some of the dead one may have come to their end before; then it is done again.
    """
    for _ in range(MAX_TRIES):
        streams = asyncio.run(kill())
        broken = {stream.block for stream in streams if stream.is_broken}
        whole = {stream.block for stream in streams if not stream.is_broken}
        if broken and whole and not broken & whole:
            break
    assert len(broken) == 1, "the streams of the dead frontend, and of no other, break"
    assert len(whole) == 1, "the streams of the other one go on, and of no other"
    assert broken != whole
    return [stream for stream in streams if not stream.is_broken]


@pytest.mark.parametrize(("victim", "how"), [("frontend", signal.SIGKILL), ("frontend-2", signal.SIGSTOP)])
def test_the_streams_of_the_other_one_never_notice(
    ring: RingClient,
    requests: list[dict[str, Any]],
    undisturbed: list[Generated],
    victim: str,
    how: signal.Signals,
):
    async def run() -> list[Stream]:
        async with ring.connect() as client:
            streams, tasks = await begin_on_both(client, requests)
            num_restarts = await asyncio.to_thread(ring.kill, victim, how)
            for _ in range(4):
                reply = await client.post("/generate", json={**requests[0], "stream": False, "max_tokens": 1})
                assert reply.status_code == 200, reply.text
            await asyncio.gather(*tasks)
            await wait_until_back(client, victim, num_restarts)
            return streams

    whole = survivors_of(run)
    check_same([stream.result() for stream in whole], [undisturbed[stream.index] for stream in whole])
    assert all(stream.result().attempts == 1 for stream in whole)
    ring.wait_until_empty()
    assert set(ring.health()["processes"]) == set(ring.run_dir.pids()) == NAMES
    check_same(ring.generate_all(requests), undisturbed)
    ring.wait_until_empty()


def test_both_are_replaced_by_order_under_load(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    load = Load(ring, requests, undisturbed)

    async def act(client: httpx.AsyncClient) -> None:
        for process in ("frontend", "frontend-2"):
            await load.wait_for_replies(NUM_STREAMS)
            await replace(client, process)
            await load.wait_for_replies(NUM_STREAMS)

    asyncio.run(load.run_during(act))
    assert load.num_attempts == load.num_replies
    ring.wait_until_empty()
    assert set(ring.health()["processes"]) == set(ring.run_dir.pids()) == NAMES


@pytest.mark.parametrize("process", ["tokenizer", "scheduler", "detokenizer"])
def test_the_streams_of_both_outlive_a_process_of_the_ring(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated], process: str
):
    async def run() -> list[Stream]:
        async with ring.connect() as client:
            streams, tasks = await begin_on_both(client, requests)
            num_restarts = await asyncio.to_thread(ring.kill, process)
            await asyncio.gather(*tasks)
            await wait_until_back(client, process, num_restarts)
            return streams

    streams = asyncio.run(run())
    check_same([stream.result() for stream in streams], [undisturbed[stream.index] for stream in streams])
    ring.wait_until_empty()


def test_one_dies_together_with_the_scheduler(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    """The other's streams go on as continuations; the orphans are not among them."""

    async def run() -> list[Stream]:
        async with ring.connect() as client:
            streams, tasks = await begin_on_both(client, requests)
            victims = {name: ring.kill(name) for name in ("frontend-2", "scheduler")}
            await asyncio.gather(*tasks)
            for name, num_restarts in victims.items():
                await wait_until_back(client, name, num_restarts)
            return streams

    whole = survivors_of(run)
    check_same([stream.result() for stream in whole], [undisturbed[stream.index] for stream in whole])
    ring.wait_until_empty()
