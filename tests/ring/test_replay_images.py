"""Requests with images are recorded with digests alone or, with a flag, with the files that a replay needs."""

import base64
import shutil
from pathlib import Path

import httpx
import pytest

from extras.replay.recording import Recording
from runtime.black_box.image_recorder import FOLDER
from tests.frontend.images.test_chat_images import data_url, image_part, picture
from tests.ring.client import TIMEOUT_S, RingClient
from tests.ring.test_replay import launch

pytestmark = [pytest.mark.ring, pytest.mark.timeout(600)]

RED, BLUE = picture(61, 40, "red"), picture(30, 91, "blue")
"""Pictures that no other module sends."""


@pytest.fixture(scope="module")
def uids(image_ring: RingClient, image_recording: Path) -> list[int]:
    """The recorded uids of two requests with an image each, and one without."""
    for parts in ([image_part(data_url(RED))], [image_part(data_url(BLUE))], []):
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]
        body = {"model": "m", "messages": messages, "max_tokens": 8, "temperature": 0}
        reply = httpx.post(f"{image_ring.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
        assert reply.status_code == 200, reply.text
    return sorted(uid for uid, _ in Recording(image_recording).attempts)[-3:]


def test_frames_have_no_bytes_of_images(uids: list[int], image_recording: Path):
    frames = b"".join(file.read_bytes() for file in image_recording.glob("*.frames"))
    for image in (RED, BLUE):
        assert image[-60:] not in frames
        assert base64.b64encode(image)[-60:] not in frames
    assert {file.read_bytes() for file in (image_recording / FOLDER).iterdir()} >= {RED, BLUE}


@pytest.mark.parametrize("only", [(), ("--only", "tokenizer")])
def test_recorded_requests_with_images_come_again(uids: list[int], image_recording: Path, only: tuple[str, ...]):
    result = launch("replay", str(image_recording), *only, "--uid", *map(str, uids))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("the same: 3 requests")


def test_without_its_bytes_a_request_does_not_come_again(uids: list[int], image_recording: Path, tmp_path: Path):
    some = tmp_path / "some"
    shutil.copytree(image_recording, some)
    for file in (some / FOLDER).iterdir():
        if file.read_bytes() == RED:
            file.unlink()
    result = launch("replay", str(some), "--only", "scheduler", "--uid", *map(str, uids))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("the same: 2 requests")
    assert "1 attempts are left out: frames have only digests of images" in result.stderr
    assert "--record-images-mb" in result.stderr


def test_a_damaged_file_counts_as_missing(uids: list[int], image_recording: Path, tmp_path: Path):
    damaged = tmp_path / "damaged"
    shutil.copytree(image_recording, damaged)
    for file in (damaged / FOLDER).iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    assert Recording(damaged, uids=uids).num_without_images == 2
