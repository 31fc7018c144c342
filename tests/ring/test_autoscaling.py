"""An engine is added under load and removed afterwards, while it has streams: none is lost."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ring.client import ADMIN_KEY, OPERATOR, TIMEOUT_S, RingClient
from tests.ring.conftest import RESTART_FLAGS
from tests.ring.test_engines import SERVING
from tests.ring.test_rolling_restart import COMMAND_TIMEOUT_S, Load, make_requests

pytestmark = pytest.mark.ring

RANGE = ("--max-engines", "2", "--scaling", "up_tokens=1", "up_s=1", "down_s=2")


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    return start_ring(tiny_checkpoint, *RESTART_FLAGS, "--admin-key", ADMIN_KEY, "--max-num-seqs", "4", *RANGE)


async def wait_for_engines(client: httpx.AsyncClient, num: int) -> dict[str, Any]:
    """Returns the operator's view once this many engines exist and serve."""
    async with asyncio.timeout(2 * COMMAND_TIMEOUT_S):
        while True:
            shown = (await client.get("/admin/processes", headers=OPERATOR)).json()
            states = [one["state"] for one in shown["processes"] if one["name"].startswith("scheduler")]
            if len(states) == num and all(state in SERVING for state in states):
                return shown
            await asyncio.sleep(0.1)


def test_engines_follow_the_load_and_no_stream_notices(ring: RingClient):
    requests = make_requests(16, max_tokens=190)
    expected = ring.generate_all(requests)
    many, few = Load(ring, requests, expected), Load(ring, requests[:2], expected[:2])

    async def until_two(client: httpx.AsyncClient) -> None:
        scaling = (await wait_for_engines(client, 2))["scaling"]
        assert scaling["target"] == 2
        assert "prompt tokens wait, for 1 s more than 1 for each of 1" in scaling["text"]
        await many.wait_for_replies(16)

    async def until_one(client: httpx.AsyncClient) -> None:
        scaling = (await wait_for_engines(client, 1))["scaling"]
        assert scaling["target"] == 1
        assert scaling["num_decisions"]["idle"] >= 1
        await few.wait_for_replies(2)

    asyncio.run(many.run_during(until_two))
    asyncio.run(few.run_during(until_one))
    metrics = httpx.get(f"{ring.url}/metrics", timeout=TIMEOUT_S).text
    assert "sluice_engines_target 1.0" in metrics
    assert 'sluice_engine_scalings_total{cause="idle"} 0.0' not in metrics
    ring.wait_until_empty()
