"""Images in `POST /v1/chat/completions`, with a ring played by the test and a real process that decodes."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from PIL import Image

from messages.config.images import ImageConfig, VisionFacts
from messages.config.server import Config
from messages.ring.requests import TokenizeMsg
from tests.frontend.frontend_run import FrontendRun, final, make_config, wait_until

PATH = "/v1/chat/completions"
VISION = VisionFacts(family="idefics3", processor=b"{}")


def vision_config(**images: Any) -> Config:
    config = make_config()
    facts = msgspec.structs.replace(config.facts, vision=VISION)
    return msgspec.structs.replace(config, facts=facts, images=ImageConfig(**images))


def picture(width: int = 30, height: int = 20, colour: str = "red", kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, kind)
    return file.getvalue()


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def image_part(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


@pytest.fixture(scope="module")
def server() -> Iterator[FrontendRun]:
    with FrontendRun(vision_config()) as run:
        yield run


def messages_of(message: TokenizeMsg) -> Any:
    assert message.chat is not None
    return json.loads(message.chat.messages)


def test_an_image_becomes_a_file_and_a_place_in_the_messages(server: FrontendRun):
    image = picture()
    text = {"type": "text", "text": "What is this?"}
    with server.call({"messages": [user(text, image_part(data_url(image)), text)]}, path=PATH) as call:
        message = server.take_request()
        (found,) = message.images
        assert messages_of(message) == [user(text, {"type": "image"}, text)]
        assert found.digest == hashlib.blake2b(image, digest_size=16).digest()
        assert (found.width, found.height, found.param) == (30, 20, "messages[0].content[1]")
        file = server.launcher.run_dir.images / found.digest.hex()
        assert file.read_bytes() == image
        server.send(final(message, "red"))
        assert call.json()["choices"][0]["message"]["content"] == "red"
    wait_until(lambda: server.gauge("image_bytes") == 0)
    assert not file.exists()
