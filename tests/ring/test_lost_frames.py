"""Frames are lost, duplicated, corrupted or delayed on each edge of the ring: every stream stays exact and ends."""

import asyncio
from typing import Any, Literal

import pytest

from extras.faults.messages import ClearFaults, EdgeFault
from messages.control.admin import Acknowledged, Failed
from tests.ring.client import Generated, RingClient, body, events_of, generated

pytestmark = pytest.mark.ring

Kind = Literal["drop", "duplicate", "corrupt", "delay"]

EDGES = (
    ("frontend", "tokenizer"),
    ("tokenizer", "scheduler"),
    ("scheduler", "detokenizer"),
    ("detokenizer", "frontend"),
)
NUM_STREAMS = 4
MAX_TRIES = 20


@pytest.fixture(scope="module")
def ring(faulty_ring: RingClient) -> RingClient:
    return faulty_ring


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return [
        body([7 + index, 8, 9], max_tokens=240, ignore_eos=True, temperature=index % 2, seed=index)
        for index in range(NUM_STREAMS)
    ]


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    return ring.generate_all(requests)


def check_same(got: list[Generated], expected: list[Generated]) -> None:
    for now, before in zip(got, expected, strict=True):
        assert (now.token_ids, now.text, now.finish_reason) == (before.token_ids, before.text, before.finish_reason)


class Injector:
    """Gives `command` to `process` after `first_tokens` of all streams, and after `every_tokens` more each time."""

    def __init__(self, ring: RingClient, process: str, command: EdgeFault, first_tokens: int, every_tokens: int = 100):
        self._ring = ring
        self._process = process
        self._command = command
        self._every_tokens = every_tokens
        self._num_tokens = every_tokens - first_tokens
        self.num_injected = 0

    def __call__(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        if self._num_tokens >= self._every_tokens:
            self._num_tokens = 0
            assert isinstance(self._ring.instruct(self._process, self._command), Acknowledged)
            self.num_injected += 1


@pytest.mark.parametrize("kind", ["drop", "corrupt", "duplicate"])
@pytest.mark.parametrize(("sender", "receiver"), EDGES[2:])
def test_the_results_of_steps(
    ring: RingClient,
    requests: list[dict[str, Any]],
    undisturbed: list[Generated],
    sender: str,
    receiver: str,
    kind: Kind,
):
    ring.generate_all(requests[:1])  # a frame lost in another test shows here
    for _ in range(MAX_TRIES):  # a slow client may see its tokens only at the end
        injector = Injector(ring, sender, EdgeFault(receiver, kind, num_frames=2), first_tokens=10)
        got = ring.generate_all(requests, injector)
        check_same(got, undisturbed)
        assert injector.num_injected > 2
        ring.instruct(sender, ClearFaults())
        attempts = max(reply.attempts for reply in got)
        if attempts > 1 or kind == "duplicate":
            break
    assert attempts == 1 if kind == "duplicate" else attempts > 1


@pytest.mark.parametrize("kind", ["drop", "corrupt", "duplicate"])
@pytest.mark.parametrize(("sender", "receiver"), EDGES)
def test_the_only_frame_of_a_quiet_edge(
    ring: RingClient,
    requests: list[dict[str, Any]],
    undisturbed: list[Generated],
    sender: str,
    receiver: str,
    kind: Kind,
):
    """Only the frame of the repetition shows that it is missing."""
    ring.instruct(sender, EdgeFault(receiver, kind))
    check_same(ring.generate_all(requests[:1]), undisturbed[:1])
    check_same(ring.generate_all(requests), undisturbed)


@pytest.mark.parametrize(("sender", "receiver"), EDGES)
def test_the_last_frame_of_a_request(ring: RingClient, sender: str, receiver: str):
    """No frame follows the end of a row, or the abort of a client that disconnects."""
    request = body([5, 6, 7], max_tokens=60, ignore_eos=True)
    (expected,) = ring.generate_all([request])

    async def leave() -> None:
        async with ring.connect() as client:
            stream = events_of(client, {**request, "max_tokens": 240})
            await anext(stream)
            ring.instruct(sender, EdgeFault(receiver, "drop"))
            await stream.aclose()

    asyncio.run(leave())
    ring.wait_until_empty()
    ring.instruct(sender, ClearFaults())
    injector = Injector(ring, sender, EdgeFault(receiver, "drop"), first_tokens=58)
    check_same(ring.generate_all([request], injector), [expected])
    ring.instruct(sender, ClearFaults())
    ring.wait_until_empty()


def test_the_word_that_a_stop_string_has_come(ring: RingClient):
    request = body([9, 8, 7], max_tokens=150, ignore_eos=True)
    (whole,) = ring.generate_all([request])
    middle = len(whole.text) // 2
    stopped = {**request, "stop": [whole.text[middle : middle + 4]]}
    (expected,) = ring.generate_all([stopped])
    assert expected.finish_reason == "stop"
    ring.instruct("detokenizer", EdgeFault("scheduler", "drop"))
    check_same(ring.generate_all([stopped]), [expected])
    check_same(ring.generate_all([stopped]), [expected])  # the next frame reveals the loss here, not in another test


def test_an_edge_that_loses_every_fiftieth_frame(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    ring.instruct("scheduler", EdgeFault("detokenizer", "drop", probability=0.02))
    ring.instruct("detokenizer", EdgeFault("frontend", "duplicate", probability=0.1))
    check_same(ring.generate_all(requests), undisturbed)
    for name in ("scheduler", "detokenizer"):
        ring.instruct(name, ClearFaults())


def test_a_slow_edge_loses_nothing(ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]):
    ring.generate_all(requests[:1])  # a frame lost in another test shows here instead of in the middle of this one
    ring.instruct("scheduler", EdgeFault("detokenizer", "delay", num_frames=20, delay_s=0.1))
    got = ring.generate_all(requests)
    check_same(got, undisturbed)
    assert {reply.attempts for reply in got} == {1}


def test_a_reply_in_one_piece(ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]):
    async def run() -> list[Generated]:
        ring.instruct("scheduler", EdgeFault("detokenizer", "drop", num_frames=3))
        async with ring.connect() as client:
            replies = [client.post("/generate", json={**request, "stream": False}) for request in requests]
            return [generated(reply.json()) for reply in await asyncio.gather(*replies)]

    check_same(asyncio.run(run()), undisturbed)


def test_an_edge_that_is_not_there_is_refused(ring: RingClient):
    result = ring.instruct("tokenizer", EdgeFault("detokenizer", "drop"))
    assert isinstance(result, Failed)
    assert "only to scheduler, frontend" in result.message
