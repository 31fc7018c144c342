"""An engine of two ranks, or of two stages, with streams: text stays exact, whichever process dies."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.ring.client import ADMIN_KEY, RingClient
from tests.ring.conftest import RESTART_FLAGS
from tests.ring.test_kept_cache import NUM_STREAMS, PAGE_TOKENS, PROMPT_TOKENS, requests
from tests.ring.test_standby import maps_of

pytestmark = pytest.mark.ring

__all__ = ["requests"]  # a fixture


@pytest.fixture(scope="module", params=["--tensor-parallel", "--pipeline-parallel"])
def ring(tiny_checkpoint: Path, start_ring: Any, request: pytest.FixtureRequest) -> RingClient:
    return start_ring(tiny_checkpoint, *RESTART_FLAGS, "--admin-key", ADMIN_KEY, request.param, "2")


def test_streams_continue_exactly_when_any_rank_dies(ring: RingClient, requests: list[dict[str, Any]]):
    undisturbed = ring.generate_all(requests)
    for num_deaths, victim in enumerate(("rank1", "scheduler"), 1):
        num_tokens, pid = 0, ring.status(victim)["pid"]

        def kill_amid_streams(more: int, pid: int = pid) -> None:
            nonlocal num_tokens
            is_first = num_tokens < NUM_STREAMS * 20 <= num_tokens + more
            num_tokens += more
            if is_first:
                os.kill(pid, signal.SIGKILL)  # without another request first, during which the streams might end

        got = ring.generate_all(requests, kill_amid_streams)
        assert [(one.text, one.token_ids) for one in got] == [(one.text, one.token_ids) for one in undisturbed]
        # Both are back within a second, so frames that they had not received may count as lost, too (decision 0008).
        assert max(one.attempts for one in got) in (2, 3)
        for name in ("scheduler", "rank1"):
            ring.wait_for_restart(name, num_deaths)
            kept = maps_of(ring.status(name)["pid"])
            assert any("memfd:sluice-weights" in path for path in kept)
            assert any(f"memfd:sluice-{name}.kv-cache" in path for path in kept)
        gauges = ring.gauges("scheduler")
        assert gauges["resumed_tokens"] >= NUM_STREAMS * PROMPT_TOKENS
        assert gauges["recomputed_tokens"] <= gauges["resumed_tokens"] / PROMPT_TOKENS * (PAGE_TOKENS + 1)
    ring.wait_until_empty()
    assert ring.status("rank1")["gauges"]["steps"] > 0
