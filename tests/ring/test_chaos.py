"""Some seconds of chaos (ten minutes in `make chaos`): nothing is lost, doubled, wrong or left behind."""

from pathlib import Path
from typing import Any

import pytest

from tests.ring.chaos import FLAGS, report, run_chaos
from tests.ring.client import RingClient

pytestmark = pytest.mark.ring

SECONDS = 8.0
BUSY_FLAGS = ("--restart-hold-s", "50", "--stall-s", "30")
"""A start, and progress, may take longer than the defaults on a busy machine."""


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    return start_ring(tiny_checkpoint, *FLAGS, *BUSY_FLAGS)


def test_every_stream_is_exact(ring: RingClient):
    counts = run_chaos(ring, SECONDS, seed=3, pause_s=(1.0, 2.5))
    print(report(counts))
    assert counts.wrong == []
    assert counts.stalls == []
    assert (counts.lost, counts.doubled, counts.refused) == (0, 0, 0)
    assert counts.kills.total() >= 2
    assert counts.frames.total() >= 2
    assert counts.streams > 0
