"""Some seconds of chaos (ten minutes in `make chaos`): nothing is lost, doubled, wrong or left behind."""

from typing import Any

import pytest

from tests.ring.chaos import FLAGS, IMAGE_FLAGS, report, run_chaos
from tests.ring.client import RingClient
from tests.vision_models import make_vision_model

pytestmark = pytest.mark.ring

SECONDS = 8.0
BUSY_FLAGS = ("--restart-hold-s", "50", "--stall-s", "30")
"""A start, and progress, may take longer than the defaults on a busy machine."""


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, start_ring: Any) -> RingClient:
    model_dir = make_vision_model("idefics3", tmp_path_factory.mktemp("model") / "tiny")
    return start_ring(model_dir, *FLAGS, *IMAGE_FLAGS, *BUSY_FLAGS)


def test_every_stream_is_exact(ring: RingClient):
    counts = run_chaos(ring, SECONDS, seed=3, pause_s=(1.0, 2.5))
    print(report(counts))
    assert counts.wrong == []
    assert counts.stalls == []
    assert (counts.lost, counts.doubled, counts.refused) == (0, 0, 0)
    assert counts.kills.total() >= 2
    assert counts.frames.total() >= 2
    assert counts.streams > 0
