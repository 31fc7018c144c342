"""transformers' processors, in which images and prompts are prepared for comparison with ours."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image

from messages.config.images import VisionFacts
from runtime.images.layout import Layout
from runtime.images.pixels import Pixels, decode, make_views
from runtime.model_files import read_object
from supervisor.model.vision import read_vision_facts

SIZES = [
    (1, 1),
    (1, 2),
    (2, 1),
    (3, 200),
    (200, 3),
    (7, 5),
    (28, 28),
    (31, 33),
    (64, 64),
    (65, 63),
    (100, 300),
    (300, 100),
    (333, 257),
    (640, 480),
    (1023, 769),
]
"""Width and height: tiny, tall, wide, at and around multiples of patches."""

RANDOM = np.random.default_rng(11)


def facts_of(directory: Path) -> VisionFacts:
    facts = read_vision_facts(directory, read_object(directory / "config.json"))
    assert facts is not None
    return facts


def picture(size: tuple[int, int]) -> Image.Image:
    """Returns a picture with edges and noise."""
    width, height = size
    pixels = RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[: height // 2, : width // 2] //= 4
    pixels[height // 3 :, width // 3 :, 1] = 200
    return Image.fromarray(pixels)


def views_of(image: Image.Image, layout: Layout) -> list[Pixels]:
    """Returns the views of the image as a client sends it."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return make_views(decode(file, 100_000_000), layout)


def image_processor_of(directory: Path) -> Any:
    """Returns the image processor with values from 0 to 255 as its result, since rows are compared with pixels."""
    processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
    processor.do_rescale = processor.do_normalize = False
    return processor
