"""A scheduler is killed under long streams: the next one keeps window pages and checkpoints with their pages."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import build_checkpoint
from tests.ring.client import body
from tests.ring.test_kept_cache import MAX_TRIES, NUM_STREAMS, OUTPUT_TOKENS, PAGE_TOKENS, PROMPT_TOKENS, disturb
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.ring


@pytest.mark.parametrize("variant", ["gemma3", "qwen3_5"])
def test_only_what_is_in_no_full_page_is_computed_again(variant: str, tmp_path: Path, start_ring: Any):
    write_tiny_llama(tmp_path)  # for its tokenizer
    build_checkpoint(tmp_path, variant, max_position_embeddings=256, eos_token_id=2)
    ring = start_ring(tmp_path, "--dtype", "float32", "--max-restarts-per-min", "100")
    rng = random.Random(11)
    requests = [
        body(
            [rng.randrange(3, 250) for _ in range(PROMPT_TOKENS)], max_tokens=OUTPUT_TOKENS, ignore_eos=True, seed=index
        )
        for index in range(NUM_STREAMS)
    ]
    undisturbed = ring.generate_all(requests)
    for _ in range(MAX_TRIES):
        num_continued = disturb(ring, requests, undisturbed, lambda: ring.kill("scheduler"))
        gauges = ring.gauges("scheduler")
        assert gauges["resumed_tokens"] >= NUM_STREAMS * (PROMPT_TOKENS + 1)
        if gauges["recomputed_tokens"] <= num_continued * (PAGE_TOKENS + 1):
            break
    else:  # it ran more than a page ahead of the tokens that had left it, and had freed what was behind its window
        raise AssertionError("a busy scheduler was never killed close behind its clients")
    assert gauges.get("window_pages_all", 0) < gauges["pages_all"]
    for request, reply in zip(requests, undisturbed, strict=True):
        turn = body([*request["prompt"], *reply.token_ids, 9, 9], max_tokens=1, seed=request["seed"])
        (next_reply,) = ring.generate_all([turn])
        assert next_reply.usage["cached_tokens"] == (PROMPT_TOKENS + OUTPUT_TOKENS - 1) // PAGE_TOKENS * PAGE_TOKENS
