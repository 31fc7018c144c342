"""Next to one body of any endpoint, the first token of others comes at most half a second later."""

import asyncio
import json
import shutil
import statistics
import time
from typing import Any

import httpx
import pytest

from tests.ring.client import BARD, BARD_DIR, RingClient

pytestmark = pytest.mark.ring

LATER_S = 0.5
WATCH_S = 1.0
NUM_ALONE = 3
MAX_TRIES = 8
"""Another program can use the machine during a measurement; one try in which others are served soon is enough."""


WORDS = [f"w{place * 7 % 997}" for place in range(997)]


def words(count: int, first: int = 0) -> str:
    begin = first * 31 % len(WORDS)
    return " ".join((WORDS * (count // len(WORDS) + 2))[begin : begin + count])


def texts(count: int, num_words: int) -> list[str]:
    return [words(num_words, first) for first in range(count)]


def predicates(count: int) -> list[dict[str, str]]:
    return [{"type": "predicate", "instructions": words(4, first)} for first in range(count)]


OPTIONS = [{"value": text} for text in texts(255, 40)]
MANY_OPTIONS = [{"type": "choice", "instructions": "which", "choices": OPTIONS} for _ in range(40)]
OUTPUT = {"ignore_eos": True, "max_tokens": 200}

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "score": ("/score", {"text_1": "what is a river?", "text_2": texts(1000, 2)}),
    "rerank": ("/rerank", {"query": "what is a river?", "documents": texts(1000, 12)}),
    "prompts": ("/v1/completions", {"prompt": texts(300, 60), "max_tokens": 1}),
    "prompts with output": ("/v1/completions", {"prompt": texts(300, 5), **OUTPUT}),
    "choices": ("/v1/completions", {"prompt": words(40), "n": 64, **OUTPUT}),
    "logprobs": ("/v1/completions", {"prompt": texts(60, 5), "logprobs": 20, **OUTPUT}),
    "logprobs of prompts": ("/v1/completions", {"prompt": words(100), "n": 32, "max_tokens": 1, "prompt_logprobs": 20}),
    "beams": ("/v1/completions", {"prompt": "To be", "use_beam_search": True, "n": 16, "max_tokens": 64}),
    "embeddings": ("/v1/embeddings", {"input": texts(1000, 40)}),
    "the largest body": ("/v1/embeddings", {"input": texts(1000, 3_000), "truncate_prompt_tokens": -1}),
    "vectors of tokens": ("/pooling", {"input": texts(60, 40), "task": "token_embed"}),
    "embed of Ollama": ("/api/embed", {"model": BARD, "input": texts(1000, 40)}),
    "decisions": ("/v1/decisions", {"input": words(60), "questions": predicates(400)}),
    "decisions with a long input": ("/v1/decisions", {"input": words(300_000), "questions": predicates(400)}),
    "decisions with many options": ("/v1/decisions", {"input": "x", "questions": MANY_OPTIONS}),
    "tokens": ("/tokenize", {"prompt": words(300_000)}),
    "messages": ("/v1/chat/completions", {"messages": [{"role": "user", "content": words(9)}] * 3_000}),
}


REFUSED = {"decisions with a long input", "decisions with many options", "messages"}
"""Bodies that cost too much; the others are answered, or still work when the test leaves."""


def slowness() -> float:
    """Returns how much longer computing takes now because other programs use the machine."""
    begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
    while time.thread_time() - begin_cpu_s < 0.05:
        pass
    return max(1.0, (time.monotonic() - begin_s) / (time.thread_time() - begin_cpu_s))


MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, start_ring: Any) -> RingClient:
    """A server of the bundled model, which also gives vectors."""
    path = tmp_path_factory.mktemp("vectors") / BARD
    shutil.copytree(BARD_DIR, path)
    (path / "modules.json").write_text(json.dumps(MODULES))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return start_ring(path, "--dtype", "float32", "--served-model-name", BARD)


async def first_token_s(client: httpx.AsyncClient) -> float:
    """Returns how long a small request waits for its first token."""
    begin_s = time.monotonic()
    body = {"prompt": "To be", "max_tokens": 2, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line.startswith("data:"):
                return time.monotonic() - begin_s
    raise AssertionError("no token came")


async def wait_of_others_s(ring: RingClient, name: str) -> float:
    """Returns how much later a first token comes next to the body than alone, were the machine ours."""
    path, body = BODIES[name]
    async with ring.connect() as client:
        alone_s = [await first_token_s(client) for _ in range(NUM_ALONE)]
        before = slowness()
        large = asyncio.create_task(client.post(path, json=body))
        extra_s: list[float] = []
        end_s = time.monotonic() + WATCH_S
        while not large.done() and time.monotonic() < end_s:
            extra_s.append(await first_token_s(client))
        large.cancel()
        (outcome,) = await asyncio.gather(large, return_exceptions=True)
        if isinstance(outcome, httpx.Response):
            assert outcome.status_code == (400 if name in REFUSED else 200), outcome.text[:500]
        await asyncio.to_thread(ring.wait_until_empty)
        if not extra_s:
            return 0.0
        return (statistics.median(extra_s) - statistics.median(alone_s)) / max(before, slowness())


@pytest.mark.parametrize("name", BODIES)
def test_others_have_their_first_token_soon_next_to_one_body(ring: RingClient, name: str):
    waits_s: list[float] = []
    while not waits_s or waits_s[-1] > LATER_S:
        assert len(waits_s) < MAX_TRIES, waits_s
        waits_s.append(asyncio.run(wait_of_others_s(ring, name)))
