"""From an image file to the rows of its encoding: its layout, the pixels of its views, and the tower."""

import contextlib
import struct
import tempfile
from pathlib import Path
from typing import Any, cast

import torch

from messages.config.server import Config
from messages.errors import ErrorInfo, RequestError
from messages.ring.images import ImageInput
from runtime.images.decoding import ImageDecoder
from runtime.images.errors import ImageError
from runtime.images.layout import Budget
from runtime.images.registry import read_rule
from runtime.images.rule import Rule
from runtime.numa import allowed_cpus
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.vision.load_tower import find_placement, load_tower
from scheduler_proc.computing.vision.view_tower import ViewTower

MILLION = 1_000_000
WARM_SIDE = 64
"""Pixels: the side of the image that is encoded before the first."""

BMP = struct.Struct("<2sIIIIiiHHIIiiII")


def open_encoder(config: Config, folder: Path, report: Report) -> "ImageEncoder":
    """Returns the encoder of the images in `folder`, which has encoded one. Raises `BootError`."""
    facts = config.facts.vision
    num_threads = config.model.cpu_threads or len(allowed_cpus())
    torch.set_num_threads(max(1, num_threads // config.images.encoder_workers))
    assert facts is not None, "the model has a tower"
    tower = load_tower(config, report)
    encoder = ImageEncoder(tower, read_rule(facts), folder, config.images.max_image_pixels * MILLION)
    texts = find_placement(config).texts
    encoder.placement = {name: texts[name] for name in ("device", "dtype")}
    report("warming up", None)
    encoder.warm_up()
    return encoder


class ImageEncoder:
    """An image may have at most `max_pixels`. See `Encode`."""

    def __init__(self, tower: ViewTower, rule: Rule, folder: Path, max_pixels: int):
        self._tower, self._rule, self._folder, self._max_pixels = tower, rule, folder, max_pixels
        self._decoder = ImageDecoder()
        self.placement: dict[str, str] = {}

    def __call__(self, image: ImageInput, num_images: int) -> memoryview:
        budget = Budget(image.min_pixels, image.max_pixels, image.max_tokens)
        return self._encode(image, self._folder / image.digest.hex(), budget, num_images)

    def close(self) -> None:
        self._decoder.close()

    def warm_up(self) -> None:
        """Encodes a small image, so that the first one of a client is as fast as the others."""
        with tempfile.NamedTemporaryFile(suffix=".bmp") as file:
            file.write(gray_image(WARM_SIDE))
            file.flush()
            image = ImageInput(b"", WARM_SIDE, WARM_SIDE)
            for max_tokens in (1, 0):
                with contextlib.suppress(RequestError):
                    self._encode(image, Path(file.name), Budget(max_tokens=max_tokens), 1)
                    return

    def _encode(self, image: ImageInput, path: Path, budget: Budget, num_images: int) -> memoryview:
        try:
            layout = self._rule.layout((image.width, image.height), budget, num_images)
            views = [torch.tensor(view) for view in self._decoder.views(path, layout, self._max_pixels)]
        except (ImageError, ValueError) as error:
            status = error.status if isinstance(error, ImageError) else 400
            kind = "invalid_request_error" if status == 400 else "service_unavailable"
            text = f"The image at {image.param} cannot be used: {error}"
            raise RequestError(ErrorInfo(status, text, kind, image.param)) from None
        rows_NE = self._tower.encode(views, layout)
        return memoryview(cast("Any", rows_NE.contiguous().view(torch.uint8).numpy())).cast("B")


def gray_image(side: int) -> bytes:
    """Returns a BMP file with this many lines and columns, a multiple of 4, of gray pixels."""
    num_bytes = 3 * side * side
    header = BMP.pack(b"BM", BMP.size + num_bytes, 0, BMP.size, 40, side, side, 1, 24, 0, num_bytes, 0, 0, 0, 0)
    return header + b"\x80" * num_bytes
