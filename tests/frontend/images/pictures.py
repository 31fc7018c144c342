"""Pictures as bodies of requests have them, and a frontend whose model reads them."""

import base64
import io
from typing import Any

import msgspec
from PIL import Image

from messages.config.http import HttpConfig
from messages.config.images import ImageConfig, VisionFacts
from messages.config.server import Config
from tests.frontend.frontend_run import make_config

PATH = "/v1/chat/completions"
VISION = VisionFacts(family="idefics3", processor=b"{}")
TEXT = {"type": "text", "text": "What is this?"}


def vision_config(http: HttpConfig | None = None, **images: Any) -> Config:
    config = make_config(http)
    facts = msgspec.structs.replace(config.facts, vision=VISION)
    return msgspec.structs.replace(config, facts=facts, images=ImageConfig(**images))


def picture(width: int = 30, height: int = 20, colour: str = "red", kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, kind, **options)
    return file.getvalue()


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def image_part(image: bytes | str, **fields: Any) -> dict[str, Any]:
    url = data_url(image) if isinstance(image, bytes) else image
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}
