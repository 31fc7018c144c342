"""The whole ring gives the tokens of transformers in fp32: alone, together, chunked, cached and preempted."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.ring.client import Generated, RingClient, body

pytestmark = [pytest.mark.ring, pytest.mark.shared]

MODELS = ["tinystories-656k-llama", "nano-shakespeare-gpt2"]
BLOCK_SIZE, CONTEXT = 4, 128
MAX_TRIES = 5
FLAGS = (
    *("--dtype", "float32", "--max-num-batched-tokens", "64", "--num-pages", "48"),
    *("--block-size", str(BLOCK_SIZE), "--max-model-len", str(CONTEXT)),
)


@pytest.fixture(scope="module", params=MODELS)
def model_dir(request: pytest.FixtureRequest, shared_dir: Path) -> Path:
    return shared_dir / "models" / request.param


@pytest.fixture(scope="module")
def cases(model_dir: Path) -> list[dict[str, Any]]:
    return json.loads((model_dir / "golden.json").read_text())["cases"]


@pytest.fixture(scope="module")
def decode(model_dir: Path) -> Any:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json")).decode


@pytest.fixture(scope="module")
def ring(model_dir: Path, start_ring: Any) -> RingClient:
    """A server with chunks of 64 tokens and a cache for one or two requests."""
    return start_ring(model_dir, *FLAGS)


def check(case: dict[str, Any], got: Generated, decode: Any, num_tokens: int) -> None:
    """`got` must be the first `num_tokens` golden tokens; their margins are 7e-4 at least, so none may differ.

    Its text is what they add to the prompt's, so a space before the first word is there.
    """
    expected = case["output_ids"][:num_tokens]
    assert got.token_ids == expected, case["prompt"]
    shown = expected[:-1] if got.finish_reason == "stop" else expected
    prompt_text = decode(case["prompt_ids"])
    assert prompt_text + got.text == decode(case["prompt_ids"] + shown)
    assert got.usage["completion_tokens"] == len(expected)
    assert got.usage["prompt_tokens"] == len(case["prompt_ids"])


def test_text_prompts_alone_and_again_from_the_cache(ring: RingClient, cases: list[dict[str, Any]], decode: Any):
    for case in cases:
        length = min(len(case["output_ids"]), CONTEXT - len(case["prompt_ids"]))
        for turn in range(2):
            got = ring.generate(case["prompt"], max_tokens=length)
            check(case, got, decode, length)
            cached_pages = (len(case["prompt_ids"]) - 1) // BLOCK_SIZE
            assert turn == 0 or got.usage["cached_tokens"] == cached_pages * BLOCK_SIZE


def test_long_prompts_in_chunks_with_preemption_and_eviction(ring: RingClient, cases: list[dict[str, Any]]):
    """The prompt is extended by part of its golden output, so it takes several chunks; the output is the rest."""
    requests, expected = [], []
    for index in range(32):
        case = cases[index % len(cases)]
        grown = min(5 * index, len(case["output_ids"]) - 20, CONTEXT - 1 - 20 - len(case["prompt_ids"]))
        prompt = case["prompt_ids"] + case["output_ids"][:grown]
        length = min(40, len(case["output_ids"]) - grown, CONTEXT - len(prompt))
        requests.append(body(prompt, max_tokens=length, cache_salt=f"salt {index % 3}"))
        expected.append(case["output_ids"][grown : grown + length])
    for _ in range(MAX_TRIES):  # a slow client sends them one after another
        got = ring.generate_all(requests)
        assert [reply.token_ids for reply in got] == expected
        ring.wait_until_empty()
        if ring.gauges("scheduler")["preemptions"] > 0:
            return
    raise AssertionError("no request was preempted")
