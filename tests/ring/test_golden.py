"""The whole ring gives the tokens that transformers gives, in fp32: alone, together, chunked, cached and preempted."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.ring.client import Generated, RingClient, body

pytestmark = [pytest.mark.ring, pytest.mark.shared]

MODELS = ["tinystories-656k-llama", "nano-shakespeare-gpt2"]
PLAIN = ("--dtype", "float32")
TIGHT = (*PLAIN, "--max-num-batched-tokens", "64", "--block-size", "4", "--max-model-len", "128", "--num-pages", "48")


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
def plain(model_dir: Path, start_ring: Any) -> RingClient:
    return start_ring(model_dir, *PLAIN)


@pytest.fixture(scope="module")
def tight(model_dir: Path, start_ring: Any) -> RingClient:
    """A server with chunks of 64 tokens and a cache that holds one or two requests only."""
    return start_ring(model_dir, *TIGHT)


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


def test_text_prompts_alone_and_again_from_the_cache(plain: RingClient, cases: list[dict[str, Any]], decode: Any):
    for turn in range(2):
        for case in cases:
            got = plain.generate(case["prompt"], max_tokens=len(case["output_ids"]))
            check(case, got, decode, len(case["output_ids"]))
            assert turn == 0 or got.usage["cached_tokens"] == (len(case["prompt_ids"]) - 1) // 16 * 16


def test_32_at_once(plain: RingClient, cases: list[dict[str, Any]], decode: Any):
    chosen = [cases[index % len(cases)] for index in range(32)]
    lengths = [len(case["output_ids"]) - index for index, case in enumerate(chosen)]
    requests = [
        body(case["prompt_ids"], max_tokens=length, cache_salt=f"salt {index % 3}")
        for index, (case, length) in enumerate(zip(chosen, lengths, strict=True))
    ]
    for case, length, got in zip(chosen, lengths, plain.generate_all(requests), strict=True):
        check(case, got, decode, length)


def test_long_prompts_in_chunks_with_preemption_and_eviction(
    tight: RingClient, cases: list[dict[str, Any]], decode: Any
):
    """The prompt is grown by part of its golden output, so it takes several chunks, and continues with the rest."""
    requests, expected = [], []
    for index in range(32):
        case = cases[index % len(cases)]
        grown = min(5 * index, len(case["output_ids"]) - 20, 127 - 20 - len(case["prompt_ids"]))
        prompt = case["prompt_ids"] + case["output_ids"][:grown]
        length = min(40, len(case["output_ids"]) - grown, 128 - len(prompt))
        requests.append(body(prompt, max_tokens=length))
        expected.append(case["output_ids"][grown : grown + length])
    got = tight.generate_all(requests)
    assert [reply.token_ids for reply in got] == expected
    tight.wait_until_empty()
    assert tight.gauges("scheduler")["preemptions"] > 0
