"""A request that kills the scheduler: only this request fails, all other streams continue and stay exact."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from benchmarks.server_process import LAUNCH
from extras.faults.messages import ClearFaults, Poison
from messages.columns import pack_int32
from messages.control.admin import Done, TakeSnapshot
from messages.frame_files import find_readers
from messages.ring.requests import TokenizeMsg
from supervisor.client.admin_client import AdminClient
from tests.ring.client import TIMEOUT_S, Generated, RingClient, body, collect

pytestmark = pytest.mark.ring

NUM_OTHERS = 7
MAX_TRIES = 5
STOPPED_S = 1.5
"""A stream that has not ended when its scheduler has been stopped for so long was in the middle."""

POISON = [319, 318, 319, 318, 319]
"""A sequence of token ids that no other prompt has."""

CULPRIT = [5, *POISON, 6]


class Killed(NamedTuple):
    """The replies to the clients with three deaths of the scheduler, and without."""

    got: list[Generated]
    undisturbed: list[Generated]
    refusal: httpx.Response
    num_restarts: int


OTHERS = [
    body([7 + index, 8, 9], max_tokens=200, ignore_eos=True, temperature=index % 2, seed=index)
    for index in range(NUM_OTHERS)
]


@pytest.fixture(scope="module")
def ring(faulty_ring: RingClient) -> Iterator[RingClient]:
    faulty_ring.instruct("scheduler", Poison("kill", token_ids=pack_int32(POISON)))
    yield faulty_ring
    faulty_ring.instruct("scheduler", ClearFaults())


@pytest.fixture(scope="module")
def killed(ring: RingClient) -> Killed:
    """The scheduler is stopped until the culprit waits for it, so that no stream ends before."""
    undisturbed, status = ring.generate_all(OTHERS), ring.status("scheduler")
    num_restarts = status["num_restarts"] + 3

    async def begin(client: httpx.AsyncClient) -> list[asyncio.Task[Generated]]:
        """Returns the streams of a scheduler that is stopped in the middle of one or more of them."""
        for _ in range(MAX_TRIES):
            has_begun = asyncio.Event()

            def stop(num_tokens: int, has_begun: asyncio.Event = has_begun) -> None:
                if not has_begun.is_set():
                    os.kill(status["pid"], signal.SIGSTOP)
                    has_begun.set()

            streams = [asyncio.create_task(collect(client, request, stop)) for request in OTHERS]
            await has_begun.wait()
            await asyncio.wait(streams, timeout=STOPPED_S)
            if not all(stream.done() for stream in streams):
                return streams
            os.kill(status["pid"], signal.SIGCONT)  # a slow client sees the tokens only at the end
        raise AssertionError("the scheduler was never stopped in mid-stream")

    async def run() -> tuple[list[Generated], httpx.Response]:
        async with ring.connect() as client:
            streams = await begin(client)
            try:
                request = body(CULPRIT, max_tokens=5, stream=False, request_id="culprit")
                poison = asyncio.create_task(client.post("/generate", json=request))
                while (shown := await client.get("/requests/culprit")).status_code != 200 or (
                    shown.json()["choices"][0]["stage"] != "scheduler_inbox"
                ):
                    await asyncio.sleep(0.01)
            finally:
                os.kill(status["pid"], signal.SIGCONT)
            return await asyncio.gather(*streams), await poison

    got, refusal = asyncio.run(run())
    ring.wait_for_restart("scheduler", num_restarts)
    return Killed(got, undisturbed, refusal, num_restarts)


def test_the_culprit_is_refused_and_no_one_else(ring: RingClient, killed: Killed):
    assert killed.refusal.status_code == 500
    assert "reference" in killed.refusal.json()["error"]["message"]
    for now, before in zip(killed.got, killed.undisturbed, strict=True):
        assert (now.text, now.token_ids) == (before.text, before.token_ids)
    assert max(reply.attempts for reply in killed.got) >= 3
    assert ring.status("scheduler")["num_restarts"] == killed.num_restarts
    ring.wait_until_empty()


@pytest.mark.usefixtures("killed")
def test_a_replay_of_a_snapshot_dies_of_the_same_request(ring: RingClient, tmp_path: Path):
    """From the recording of this server, the poison and another stream are replayed."""
    snapshot = tmp_path / "snapshot"
    with AdminClient(ring.run_dir) as line:
        assert isinstance(line.give(TakeSnapshot(str(snapshot)), TIMEOUT_S), Done)
    uids = [uid_of(snapshot / "black-box", prompt) for prompt in (CULPRIT, OTHERS[0]["prompt"])]
    command = [*LAUNCH, "replay", str(snapshot), "--uid", *map(str, uids)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "scheduler died: it was killed by SIGKILL" in result.stdout
    assert f"request {uids[0]}, attempt 0 kills it: frame " in result.stdout
    assert "on frontend:tokenizer\n  recorded  did not end there either, after 0 tokens" in result.stdout


def uid_of(folder: Path, prompt: list[int]) -> int:
    """Returns the uid of the latest request with this prompt."""
    (frontend,) = (reader for reader in find_readers(folder) if reader.process == "frontend")
    opened = [record.decode() for record in frontend.read() if record.is_sent]
    return [one.uid for one in opened if isinstance(one, TokenizeMsg) and one.prompt_ids == pack_int32(prompt)][-1]
