"""A scheduler of a model with windows is killed under long streams: the next one keeps pages and window pages."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import build_checkpoint
from tests.ring.client import body
from tests.ring.test_kept_cache import NUM_STREAMS, OUTPUT_TOKENS, PAGE_TOKENS, PROMPT_TOKENS, disturb
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.ring


def test_only_what_is_in_no_full_page_is_computed_again(tmp_path: Path, start_ring: Any):
    write_tiny_llama(tmp_path)  # for its tokenizer
    build_checkpoint(tmp_path, "gemma3", max_position_embeddings=256, eos_token_id=2)
    ring = start_ring(tmp_path, "--dtype", "float32", "--max-restarts-per-min", "100")
    rng = random.Random(11)
    requests = [
        body(
            [rng.randrange(3, 250) for _ in range(PROMPT_TOKENS)], max_tokens=OUTPUT_TOKENS, ignore_eos=True, seed=index
        )
        for index in range(NUM_STREAMS)
    ]
    disturb(ring, requests, ring.generate_all(requests), lambda: ring.kill("scheduler"))
    gauges = ring.gauges("scheduler")
    assert gauges["resumed_tokens"] >= NUM_STREAMS * (PROMPT_TOKENS + 1)
    assert gauges["recomputed_tokens"] <= NUM_STREAMS * (PAGE_TOKENS + 1)
    assert gauges["window_pages_all"] < gauges["pages_all"]
