"""An engine of two ranks, or of two stages, with streams: text stays exact, whichever process dies."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ring.client import ADMIN_KEY, RingClient
from tests.ring.conftest import RESTART_FLAGS
from tests.ring.test_kept_cache import NUM_STREAMS, requests
from tests.ring.test_standby import maps_of

pytestmark = pytest.mark.ring

__all__ = ["requests"]  # a fixture


@pytest.fixture(scope="module", params=["--tensor-parallel", "--pipeline-parallel"])
def ring(tiny_checkpoint: Path, start_ring: Any, request: pytest.FixtureRequest) -> RingClient:
    return start_ring(tiny_checkpoint, *RESTART_FLAGS, "--admin-key", ADMIN_KEY, request.param, "2")


def test_streams_continue_exactly_when_any_rank_dies(ring: RingClient, requests: list[dict[str, Any]]):
    undisturbed = ring.generate_all(requests)
    for num_deaths, victim in enumerate(("rank1", "scheduler"), 1):
        num_tokens = 0

        def kill_amid_streams(more: int, victim: str = victim) -> None:
            nonlocal num_tokens
            is_first = num_tokens < NUM_STREAMS * 20 <= num_tokens + more
            num_tokens += more
            if is_first:
                ring.kill(victim)

        got = ring.generate_all(requests, kill_amid_streams)
        assert [(one.text, one.token_ids) for one in got] == [(one.text, one.token_ids) for one in undisturbed]
        # Both are back within a second, so frames that they had not received may count as lost, too (decision 0008).
        assert max(one.attempts for one in got) in (2, 3)
        for name in ("scheduler", "rank1"):
            ring.wait_for_restart(name, num_deaths)
            kept = [path for path in maps_of(ring.status(name)["pid"]) if "memfd:sluice" in path]
            assert kept
            assert all("memfd:sluice-weights" in path for path in kept)
    ring.wait_until_empty()
    assert ring.status("rank1")["gauges"]["steps"] > 0


def test_options_of_requests_give_the_same_texts(ring: RingClient, plain_ring: RingClient):
    """A grammar, penalties, biases, and logprobs, whose last bits differ if ranks add up parts of sums."""
    drawn = {"temperature": 0.8, "seed": 7, "presence_penalty": 0.7, "frequency_penalty": 0.4}
    asked: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "[a-c]{4}-[0-9]{3}"}, "repetition_penalty": 1.2, **drawn},
        {"temperature": 0.0, "logprobs": 3, "logit_bias": {"70": 9.5}},
        {"temperature": 0.0, "prompt_logprobs": 2, "bad_words": ["a"], "min_p": 0.1},
    ]
    config = ring.run_dir.read_config()
    for fields in asked:
        body = {"model": config.facts.served_names[0], "prompt": "Name a king.", "max_tokens": 16, **fields}
        staged, alone = (httpx.post(f"{one.url}/v1/completions", json=body, timeout=60) for one in (ring, plain_ring))
        assert staged.status_code == 200, staged.text
        (own,), (expected,) = (reply.json()["choices"] for reply in (staged, alone))
        assert own["text"] == expected["text"]
        assert own == expected or config.run.tensor_parallel > 1
        if "structured_outputs" in fields:
            assert re.fullmatch("[a-c]{4}-[0-9]{3}", own["text"])
