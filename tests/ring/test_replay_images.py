"""Requests with images are recorded with digests alone or, with a flag, with the files that a replay needs."""

import base64
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.black_box.image_recorder import FOLDER
from tests.frontend.images.test_chat_images import data_url, image_part, picture
from tests.ring.client import TIMEOUT_S, RingClient
from tests.ring.conftest import starting
from tests.ring.test_replay import launch
from tests.vision_models import make_vision_model

pytestmark = [pytest.mark.ring, pytest.mark.timeout(600)]

RED, BLUE = picture(60, 40, "red"), picture(30, 90, "blue")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of two requests with an image each, and one without."""
    model = make_vision_model("idefics3", tmp_path_factory.mktemp("vision") / "model")
    recording = tmp_path_factory.mktemp("recording") / "run"
    flags = ("--dtype", "float32", "--record", str(recording), "--record-images-mb", "10")
    with starting() as start:
        ring = start(model, *flags)
        for parts in ([image_part(data_url(RED))], [image_part(data_url(BLUE))], []):
            ask(ring, *parts)
    return recording


def ask(ring: RingClient, *parts: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    reply = httpx.post(f"{ring.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text


def test_frames_have_no_bytes_of_images(recorded: Path):
    frames = b"".join(file.read_bytes() for file in recorded.glob("*.frames"))
    for image in (RED, BLUE):
        assert image[-60:] not in frames
        assert base64.b64encode(image)[-60:] not in frames
    assert {file.read_bytes() for file in (recorded / FOLDER).iterdir()} == {RED, BLUE}


@pytest.mark.parametrize("only", [(), ("--only", "scheduler"), ("--only", "tokenizer")])
def test_recorded_requests_with_images_come_again(recorded: Path, only: tuple[str, ...]):
    result = launch("replay", str(recorded), *only)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("the same: 3 requests")


def test_without_the_bytes_only_the_other_requests_come_again(recorded: Path, tmp_path: Path):
    bare = tmp_path / "bare"
    shutil.copytree(recorded, bare, ignore=shutil.ignore_patterns(FOLDER))
    result = launch("replay", str(bare))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("the same: 1 requests")
    assert "2 attempts are left out: frames have only digests of images" in result.stderr
    assert "--record-images-mb" in result.stderr


def test_a_damaged_file_counts_as_missing(recorded: Path, tmp_path: Path):
    damaged = tmp_path / "damaged"
    shutil.copytree(recorded, damaged)
    for file in (damaged / FOLDER).iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    result = launch("replay", str(damaged))
    assert "2 attempts are left out" in result.stderr
