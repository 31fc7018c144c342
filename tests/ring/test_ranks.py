"""An engine of two ranks, or of two stages, with streams: text stays exact, whichever process dies."""

from pathlib import Path
from typing import Any

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
