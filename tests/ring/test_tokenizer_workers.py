"""Several tokenizers: requests are distributed over them, their number changes, and one dies under load."""

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from messages.control.admin import AdminCommand, Done, Result, ScaleProcess
from supervisor.client.admin_client import AdminClient
from supervisor.client.running import choose_server
from tests.ring.client import Generated, RingClient
from tests.ring.model_ring import wait_for
from tests.ring.test_rolling_restart import Load, make_requests, replace

pytestmark = pytest.mark.ring

NUM_STREAMS = 4
COMMAND_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def ring(restarted_ring: RingClient) -> Iterator[RingClient]:
    assert isinstance(give(restarted_ring, ScaleProcess("tokenizer", 2)), Done)
    wait_for_tokenizers(restarted_ring, 2)
    yield restarted_ring
    assert isinstance(give(restarted_ring, ScaleProcess("tokenizer", 1)), Done)
    wait_for_tokenizers(restarted_ring, 1)


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    """Short requests, so that many pass through the tokenizers."""
    return make_requests(NUM_STREAMS, max_tokens=25)


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    return ring.generate_all(requests)


def give(ring: RingClient, command: AdminCommand) -> Result:
    server = choose_server(None, httpx.URL(ring.url).port)
    with AdminClient(server.run_dir) as line:
        return line.give(command, COMMAND_TIMEOUT_S)


def wait_for_tokenizers(ring: RingClient, num: int) -> None:
    """The list of processes reaches the frontend a moment after the command is done."""
    wait_for(lambda: len(tokenizers(ring)) == num)


def tokenizers(ring: RingClient) -> set[str]:
    return {name for name in ring.health()["processes"] if name.startswith("tokenizer")}


def num_tokenized(ring: RingClient) -> dict[str, float]:
    return {name: ring.gauges(name).get("num_tokenized", 0.0) for name in tokenizers(ring)}


def test_requests_are_spread_over_all(ring: RingClient, undisturbed: list[Generated]):
    assert tokenizers(ring) == {"tokenizer", "tokenizer-2"}
    ring.wait_until_empty()
    before = num_tokenized(ring)
    for _ in range(8):
        ring.generate([5], max_tokens=1)
    deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
    while any(count < before[name] + 4 for name, count in num_tokenized(ring).items()):
        assert time.monotonic() < deadline_s, (before, num_tokenized(ring))
        time.sleep(0.1)


def test_their_number_changes_under_load(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    load = Load(ring, requests, undisturbed)

    async def act(client: httpx.AsyncClient) -> None:
        for num in (4, 1, 3, 2):
            await load.wait_for_replies(NUM_STREAMS)
            result = await asyncio.to_thread(give, ring, ScaleProcess("tokenizer", num))
            assert isinstance(result, Done), result
            await asyncio.to_thread(wait_for_tokenizers, ring, num)
        await load.wait_for_replies(NUM_STREAMS)

    asyncio.run(load.run_during(act))
    assert tokenizers(ring) == {"tokenizer", "tokenizer-2"}
    ring.wait_until_empty()


def test_one_of_them_is_replaced_under_load(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    load = Load(ring, requests, undisturbed)

    async def act(client: httpx.AsyncClient) -> None:
        await load.wait_for_replies(NUM_STREAMS)
        await replace(client, "tokenizer-2")
        await load.wait_for_replies(NUM_STREAMS)

    asyncio.run(load.run_during(act))
    ring.wait_until_empty()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_where_one_dies_the_others_take_its_requests_at_once(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated], how: signal.Signals
):
    """No request is rejected meanwhile; those of a stopped tokenizer continue once its hang is detected."""
    load = Load(ring, requests, undisturbed)

    async def act(client: httpx.AsyncClient) -> None:
        await load.wait_for_replies(NUM_STREAMS)
        num_restarts = await asyncio.to_thread(ring.kill, "tokenizer", how)
        await asyncio.to_thread(ring.wait_for_restart, "tokenizer", num_restarts)
        await load.wait_for_replies(NUM_STREAMS)

    asyncio.run(load.run_during(act))
    ring.wait_until_empty()
