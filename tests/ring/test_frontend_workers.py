"""Several frontends on one port: the death of one ends only its own connections."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extras.faults.messages import ClearFaults, Starve
from messages.ring.uids import block_of
from tests.frontend.frontend_run import wait_until
from tests.ring.client import Generated, RingClient, body, events_of
from tests.ring.test_restart import check_same
from tests.ring.test_rolling_restart import Load, make_requests, processes, replace

pytestmark = pytest.mark.ring

NUM_STREAMS = 8
NUM_CLIENTS = 4
"""Clients of a load."""
MAX_STREAMS = 1000
MAX_TRIES = 20
TOKENS, MISSING = "vllm:generation_tokens_total", ("sluice_frontends_missing", frozenset[tuple[str, str]]())
COUNTED = ("_total", "_bucket", "_count", "_sum")
FRONTENDS = ("frontend", "frontend-2")
NAMES = {*FRONTENDS, "tokenizer", "scheduler", "detokenizer"}
TIMEOUT_S = 60.0
PAUSE_S = 0.2
"""Interval between polls."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def ring(twin_ring: RingClient) -> RingClient:
    return twin_ring


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return [{**request, "max_tokens": 190} for request in make_requests(NUM_STREAMS, max_tokens=150)]


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    return ring.generate_all(requests)


@dataclass
class Stream:
    """The streams of a client with its own connection, from request `index` on."""

    index: int
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    block: int = 0
    """The uid's block: the frontend that assigned it has the connection."""
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
    """Begins streams, each on a new connection, until each frontend has some. Any idle frontend may accept."""
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
                    task.result()  # raises the reason of a rejected request
    return streams, tasks


async def wait_until_back(client: httpx.AsyncClient, name: str, num_restarts: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (status := (await processes(client))[name])["num_restarts"] < num_restarts or status["state"] != "ready":
            await asyncio.sleep(0.05)


def survivors_of(kill: Callable[[], Coroutine[Any, Any, list[Stream]]]) -> list[Stream]:
    """Returns the streams that outlived the death of one frontend: all of the other, and none of the dead one.

    Where a client is slow, some of the dead one may have come to their end before; then it is done again.
    """
    streams: list[Stream] = []
    broken: set[int] = set()
    whole: set[int] = set()
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


def check_processes(ring: RingClient) -> None:
    """Waits until those of `NAMES` run alone: a frontend learns of a replacement later than the launcher."""
    wait_until(lambda: set(ring.health()["processes"]) == set(ring.run_dir.pids()) == NAMES, TIMEOUT_S)


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
    check_processes(ring)
    check_same(ring.generate_all(requests), undisturbed)
    ring.wait_until_empty()


def test_both_are_replaced_by_order_under_load(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    load = Load(ring, requests[:NUM_CLIENTS], undisturbed)

    async def act(client: httpx.AsyncClient) -> None:
        for process in ("frontend", "frontend-2"):
            await load.wait_for_replies(NUM_CLIENTS)
            await replace(client, process)
        await load.wait_for_replies(NUM_CLIENTS)

    asyncio.run(load.run_during(act))
    assert load.num_attempts == load.num_replies
    ring.wait_until_empty()
    check_processes(ring)


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
    """The other frontend's streams are continued; the orphans are not."""

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


async def open_pinned(stack: AsyncExitStack, ring: RingClient) -> dict[int, httpx.AsyncClient]:
    """Returns, for each frontend by its block of uids, a client whose one connection it holds."""
    pinned: dict[int, httpx.AsyncClient] = {}
    limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
    async with asyncio.timeout(TIMEOUT_S):  # while one frontend gets no time, the other one takes every connection
        while len(pinned) < 2:
            wave = [httpx.AsyncClient(base_url=ring.url, timeout=TIMEOUT_S, limits=limits) for _ in range(NUM_STREAMS)]
            for client, block in zip(wave, await asyncio.gather(*map(block_behind, wave)), strict=True):
                if block in pinned:
                    await client.aclose()
                else:
                    stack.push_async_callback(client.aclose)
                    pinned[block] = client
    return pinned


async def block_behind(client: httpx.AsyncClient) -> int:
    reply = await client.post("/generate", json=body("a", max_tokens=1, stream=False, timeout_s=TIMEOUT_S))
    assert reply.status_code == 200, reply.text
    assert "uid" in reply.json(), reply.text
    return block_of(reply.json()["uid"])


async def is_held_by(client: httpx.AsyncClient, pid: int) -> bool:
    """True if process `pid` has the connection of `client`."""
    async with client.stream("GET", "/ping") as reply:
        _, port, *_ = reply.extensions["network_stream"].get_extra_info("client_addr")
        connections = psutil.Process(pid).net_connections("tcp")
        await reply.aread()
    return any(connection.raddr and connection.raddr.port == port for connection in connections)


async def scrape(client: httpx.AsyncClient) -> Samples:
    """Returns the values of the samples by name and labels."""
    reply = await client.get("/metrics")
    assert reply.status_code == 200, reply.text
    samples = [sample for family in text_string_to_metric_families(reply.text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series comes twice"
    return found


async def full_scrape(client: httpx.AsyncClient) -> Samples:
    """Returns the first scrape that every frontend has answered in time, which none must on a busy machine."""
    async with asyncio.timeout(TIMEOUT_S):
        while (found := await scrape(client))[MISSING] or by_worker(found, TOKENS).keys() != set(FRONTENDS):
            await asyncio.sleep(PAUSE_S)
    return found


def by_worker(samples: Samples, name: str) -> dict[str, float]:
    """Returns the sum of the samples `name` of each worker."""
    found: dict[str, float] = {}
    for (sample, labels), value in samples.items():
        if sample == name:
            worker = dict(labels)["worker"]
            found[worker] = found.get(worker, 0.0) + value
    return found


@asynccontextmanager
async def held_on_both(ring: RingClient, request: dict[str, Any]) -> AsyncIterator[list[Stream]]:
    """Streams at each frontend that wait for the scheduler. After the block all have ended."""
    streams: list[Stream] = []
    async with ring.connect() as client, asyncio.TaskGroup() as group, asyncio.timeout(2 * TIMEOUT_S):
        while len(streams) < 3 * NUM_STREAMS or min([await num_requests(client, name) for name in FRONTENDS]) < 2:
            assert len(streams) < MAX_STREAMS, "one frontend takes every connection"
            wave = [Stream(len(streams) + index) for index in range(NUM_STREAMS)]
            streams += wave
            for stream in wave:
                group.create_task(stream.follow(client, request))
            while sum([await num_requests(client, name) for name in FRONTENDS]) < len(streams):
                await asyncio.sleep(0.05)
        yield streams


async def num_requests(client: httpx.AsyncClient, process: str) -> float:
    return (await processes(client))[process]["gauges"].get("requests", 0)


@asynccontextmanager
async def starved(ring: RingClient) -> AsyncIterator[None]:
    """No request leaves the scheduler's queue while the block runs."""
    await asyncio.to_thread(ring.instruct, "scheduler", Starve())
    try:
        yield
    finally:
        await asyncio.to_thread(ring.instruct, "scheduler", ClearFaults())


def pinned_test(ring: RingClient, run: Callable[[dict[int, httpx.AsyncClient]], Coroutine[Any, Any, None]]) -> None:
    """Runs a test with a connection to each frontend."""

    async def run_pinned() -> None:
        async with AsyncExitStack() as stack:
            await run(await open_pinned(stack, ring))

    ring.wait_until_empty()
    asyncio.run(run_pinned())
    ring.wait_until_empty()


def test_a_scrape_shows_every_frontend_whichever_answers(ring: RingClient):
    async def run(pinned: dict[int, httpx.AsyncClient]) -> None:
        scrapes = [await full_scrape(client) for client in (*pinned.values(), *pinned.values())]
        for name in ("vllm:request_success_total", TOKENS, "http_requests_total"):
            seen = [by_worker(each, name) for each in scrapes]
            for before, after in pairwise(seen):
                assert set(before) == set(after) == {"frontend", "frontend-2"}
                assert all(0 < before[worker] <= after[worker] for worker in before), (name, before, after)
        for before, after in pairwise(scrapes):
            fallen = [key for key in before if key[0].endswith(COUNTED) and not before[key] <= after.get(key, -1.0)]
            assert not fallen, fallen

    pinned_test(ring, run)


@pytest.mark.parametrize("order", [{"request_id": "of-both"}, {"all": True}])
def test_each_frontend_knows_the_load_of_all_and_aborts_requests_of_all(ring: RingClient, order: dict[str, Any]):
    request = body("a", max_tokens=250, ignore_eos=True, request_id="of-both")

    async def is_answered_by_all(pinned: dict[int, httpx.AsyncClient]) -> bool:
        async with starved(ring), held_on_both(ring, request) as streams:
            loads = [(await client.get("/load")).json() for client in pinned.values()]
            health = [(await client.get("/health")).json()["processes"] for client in pinned.values()]
            flushes = [(await client.post("/flush_cache", json={})).status_code for client in pinned.values()]
            reply = (await pinned[max(pinned)].post("/abort_request", json=order)).json()
        for name in FRONTENDS:
            assert health[0][name]["gauges"].keys() == health[1][name]["gauges"].keys()
        assert flushes == [409, 409]
        aborted = [stream.last["uid"] for stream in streams if stream.last["finish_reason"] == "abort"]
        assert len(aborted) == len(streams)
        if any(each["frontends_missing"] for each in (*loads, reply)):
            return False
        assert [load["server_load"] for load in loads] == [len(streams)] * 2
        assert {block_of(uid) for uid in reply["aborted"]} == set(pinned)
        assert sorted(reply["aborted"]) == sorted(aborted)
        return True

    async def run(pinned: dict[int, httpx.AsyncClient]) -> None:
        """Until both are in time, which no process must be on a busy machine."""
        for _ in range(MAX_TRIES):
            if await is_answered_by_all(pinned):
                return
            await asyncio.to_thread(ring.wait_until_empty)
        raise AssertionError("a frontend is never in time")

    pinned_test(ring, run)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_frontend_that_does_not_answer_holds_no_one_up(ring: RingClient, how: signal.Signals):
    """Its series are missing from the scrape, which reports this if the frontend existed."""

    async def run(pinned: dict[int, httpx.AsyncClient]) -> None:
        victim = "frontend-2"
        (client,) = [each for each in pinned.values() if await is_held_by(each, ring.status("frontend")["pid"])]
        num_restarts = await asyncio.to_thread(ring.kill, victim, how)
        scrapes: list[Samples] = []
        aborts: list[tuple[int, int]] = []
        async with asyncio.timeout(TIMEOUT_S):
            while not scrapes or (await processes(client))[victim]["num_restarts"] < num_restarts:
                scrapes.append(await scrape(client))
                reply = await client.post("/abort_request", json={"all": True})
                aborts.append((reply.status_code, reply.json()["frontends_missing"]))
                await asyncio.sleep(PAUSE_S)
        await wait_until_back(client, victim, num_restarts)
        assert all(by_worker(each, TOKENS)["frontend"] > 0 for each in scrapes)
        assert all(status == 200 for status, _ in aborts)
        if how == signal.SIGSTOP:
            assert scrapes[0][MISSING] == 1
            assert by_worker(scrapes[0], TOKENS).keys() == {"frontend"}
            assert aborts[0] == (200, 1)
        await full_scrape(client)

    pinned_test(ring, run)
