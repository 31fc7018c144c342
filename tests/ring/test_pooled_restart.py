"""A process is killed while 256 texts are pooled: all get the vectors of an undisturbed request, to the bit."""

import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.ring.client import TIMEOUT_S, RingClient
from tests.ring.conftest import RESTART_FLAGS
from tests.ring.starts import wait_until
from tests.tiny_bert import write_tiny_bert

pytestmark = pytest.mark.ring

NUM_TEXTS = 256
MAX_TRIES = 5
INPUT = [f"{index}: " + "to be, or not to be, that is the question. " * (1 + index % 5) for index in range(NUM_TEXTS)]


@pytest.fixture(scope="module")
def ring(start_ring: Callable[..., RingClient], tmp_path_factory: pytest.TempPathFactory) -> RingClient:
    path = tmp_path_factory.mktemp("tiny-bert")
    write_tiny_bert(path)
    return start_ring(path, *RESTART_FLAGS, "--max-num-batched-tokens", "256")


def embed(ring: RingClient, **fields: Any) -> httpx.Response:
    body = {"input": INPUT, "encoding_format": "base64", **fields}
    return httpx.post(f"{ring.url}/v1/embeddings", json=body, timeout=2 * TIMEOUT_S)


def num_open(ring: RingClient) -> int:
    return httpx.get(f"{ring.url}/load", timeout=TIMEOUT_S).json()["server_load"]


def is_in_ring(ring: RingClient, reply: Future[httpx.Response], process: str) -> bool:
    """True if some texts are in the ring and others have left it, or if a fast machine has answered all.

    The tokenizer passes all on before the first leaves, so it is stopped until all have entered.
    """
    return reply.done() or (num_open(ring) == NUM_TEXTS if process == "tokenizer" else 0 < num_open(ring) < NUM_TEXTS)


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient) -> dict[str, Any]:
    reply = embed(ring)
    assert reply.status_code == 200, reply.text
    assert len({entry["embedding"] for entry in reply.json()["data"]}) == NUM_TEXTS
    return reply.json()


@pytest.mark.parametrize("process", ["tokenizer", "scheduler", "detokenizer"])
def test_all_texts_get_the_same_vectors(ring: RingClient, undisturbed: dict[str, Any], process: str):
    for _ in range(MAX_TRIES):
        num_before = ring.num_continued()
        with ThreadPoolExecutor() as pool:
            if process == "tokenizer":
                ring.kill(process, signal.SIGSTOP)
            reply = pool.submit(embed, ring)
            wait_until(partial(is_in_ring, ring, reply, process), TIMEOUT_S, lambda: "no text was in the ring")
            num_restarts = ring.kill(process, signal.SIGKILL)
            got = reply.result().json()
        ring.wait_for_restart(process, num_restarts)
        assert [entry["embedding"] for entry in got["data"]] == [entry["embedding"] for entry in undisturbed["data"]]
        assert got["usage"]["prompt_tokens"] == undisturbed["usage"]["prompt_tokens"]
        if ring.num_continued() > num_before:
            break
    else:
        raise AssertionError(f"the {process} never died while texts were in the ring")
    ring.wait_until_empty()
