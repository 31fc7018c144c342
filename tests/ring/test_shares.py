"""Clients of a real server: many choices of one do not delay another, and who waits can see its place."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.ring.client import BARD, BARD_DIR, RingClient

pytestmark = pytest.mark.ring

PROMPT = "ROMEO:\nBut soft, what light through yonder window breaks?"
SHOWN = {"stream": True, "stream_options": {"include_progress": True}}
LARGE = {"prompt": PROMPT, "n": 32, "max_tokens": 800, "ignore_eos": True, "temperature": 1.0, **SHOWN}
LOW = {"max_tokens": 8, "temperature": 0.0, "priority": 50}
TIMEOUT_S = 60.0
MAX_WAIT_S = 40.0
"""A busy machine takes ten times as long as a quiet one; the other client's 200,000 tokens take minutes."""


@pytest.fixture(scope="module")
def ring(start_ring: Any) -> RingClient:
    return start_ring(BARD_DIR, "--dtype", "float32", "--served-model-name", BARD, "--max-num-seqs", "16")


def at(ring: RingClient, address: str) -> httpx.Client:
    """Returns a client at an address of the loopback network."""
    return httpx.Client(
        base_url=ring.url, timeout=TIMEOUT_S, transport=httpx.HTTPTransport(local_address=address), trust_env=False
    )


@contextmanager
def busy(ring: RingClient, num_bodies: int = 8) -> Iterator[None]:
    """Keeps all rows taken by the choices of one client."""
    has_ended = threading.Event()

    def send() -> None:
        with at(ring, "127.0.0.2") as client, client.stream("POST", "/v1/completions", json=LARGE) as reply:
            for _ in reply.iter_raw():
                if has_ended.is_set():
                    break

    threads = [threading.Thread(target=send, daemon=True) for _ in range(num_bodies)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while ring.health()["processes"]["scheduler"]["gauges"].get("waiting", 0) < 100:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    try:
        yield
    finally:
        has_ended.set()
        for thread in threads:
            thread.join(TIMEOUT_S)


def test_another_client_gets_its_tokens_next_to_many_choices(ring: RingClient):
    expected = ring.generate(PROMPT, max_tokens=12, temperature=0.0)
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0.0, "stream": False}
    with busy(ring), at(ring, "127.0.0.3") as client:
        begin_s = time.monotonic()
        reply = client.post("/generate", json=body)
        assert time.monotonic() - begin_s < MAX_WAIT_S, "it waited for the other client"
        assert ring.health()["processes"]["scheduler"]["gauges"]["waiting"] > 100
    assert reply.json()["text"] == expected.text


def test_a_waiting_stream_shows_its_place(ring: RingClient):
    with busy(ring), at(ring, "127.0.0.2") as client:
        body = {**LOW, **SHOWN, "prompt": PROMPT}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            line = next(line for line in reply.iter_lines() if line.startswith(": progress "))
    place = json.loads(line.removeprefix(": progress "))
    assert place["position"] > 1
    assert place.keys() == {"position", "tokens_ahead", "expected_s"}


def test_the_official_client_reads_a_stream_that_has_waited(ring: RingClient):
    options: Any = {"include_usage": True, "include_progress": True}
    expected = ring.generate(PROMPT, max_tokens=8, temperature=0.0)
    http_client: Any = at(ring, "127.0.0.2")
    with openai.OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0, http_client=http_client) as client:
        with busy(ring):
            stream = client.completions.create(
                model=BARD,
                prompt=PROMPT,
                max_tokens=8,
                temperature=0.0,
                stream=True,
                stream_options=options,
                extra_body={"priority": 50},
            )  # the head comes with the first comment
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.text
    assert chunks[-1].usage is not None
