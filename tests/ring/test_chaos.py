"""Some seconds of chaos (ten minutes in `make chaos`): nothing is lost, doubled, wrong or left behind."""

from typing import Any

import pytest

from extras.faults.messages import EdgeFault
from messages.control.admin import Acknowledged
from tests.frontend.images.pictures import data_url, picture
from tests.ring.chaos import ENCODER_EDGES, FLAGS, IMAGE_FLAGS, report, run_chaos
from tests.ring.client import RingClient, body
from tests.vision_models import make_vision_model

pytestmark = pytest.mark.ring

SECONDS = 8.0
BUSY_FLAGS = ("--stall-s", "30", "--hang-timeout-s", "6")
"""Progress may take longer than by default on a busy machine."""


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, launch_ring: Any) -> RingClient:
    model_dir = make_vision_model("idefics3", tmp_path_factory.mktemp("model") / "tiny")
    return launch_ring(model_dir, *FLAGS, *IMAGE_FLAGS, *BUSY_FLAGS)


def test_every_stream_is_exact(ring: RingClient):
    counts = run_chaos(ring, SECONDS, seed=3, pause_s=(1.0, 2.5))
    print(report(counts))
    assert counts.wrong == []
    assert counts.stalls == []
    assert (counts.lost, counts.doubled, counts.refused) == (0, 0, 0)
    assert counts.kills.total() >= 2
    assert counts.frames.total() >= 2
    assert counts.streams > 0


@pytest.mark.parametrize("edge", ENCODER_EDGES, ids=">".join)
def test_images_are_asked_for_again_if_the_latest_message_about_them_is_lost(edge: tuple[str, str], ring: RingClient):
    """Two requests need the image, so that it is never forgotten, and nothing else is sent to the encoder."""
    sender, receiver = edge
    generate_with(ring, picture(20, 30, "#1234a0"))
    assert isinstance(ring.instruct(sender, EdgeFault(receiver, "drop", 1)), Acknowledged)
    generate_with(ring, picture(40, 30 + len(sender), "#1234a0"))


def generate_with(ring: RingClient, image: bytes) -> None:
    request = body("Number 1:", images=[data_url(image)], max_tokens=4, ignore_eos=True, stream=True)
    assert [len(end.token_ids) for end in ring.generate_all([request] * 2)] == [4, 4]
