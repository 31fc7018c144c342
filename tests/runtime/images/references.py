"""transformers' processors, in which images and prompts are prepared for comparison with ours."""

import io
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

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
    (500, 120),
    (333, 257),
    (640, 480),
    (1023, 769),
]
"""Width and height: tiny, tall, wide, at and around multiples of patches."""

RANDOM = np.random.default_rng(11)

PROCESSORS = {
    "gemma3": "gemma3.processing_gemma3.Gemma3Processor",
    "gemma4": "gemma4.processing_gemma4.Gemma4Processor",
    "idefics3": "idefics3.processing_idefics3.Idefics3Processor",
    "internvl": "internvl.processing_internvl.InternVLProcessor",
    "llava": "llava.processing_llava.LlavaProcessor",
    "llava_next": "llava_next.processing_llava_next.LlavaNextProcessor",
    "llava_onevision": "llava_onevision.processing_llava_onevision.LlavaOnevisionProcessor",
    "mistral3": "pixtral.processing_pixtral.PixtralProcessor",
    "qwen2_5_vl": "qwen2_5_vl.processing_qwen2_5_vl.Qwen2_5_VLProcessor",
    "qwen3_5": "qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor",
    "qwen3_vl": "qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor",
}
"""By the model type. Many cannot be made by their constructor here, because their parts for videos need torchvision."""


def facts_of(directory: Path) -> VisionFacts:
    facts = read_vision_facts(directory)
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


def import_class(name: str) -> type:
    """Returns a class in `transformers.models`, even if its module imports torchvision for its other parts."""
    module, name = name.rsplit(".", 1)
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    with patch.dict(sys.modules, {each: MagicMock(__spec__=None) for each in names if each not in sys.modules}):
        return getattr(import_module(f"transformers.models.{module}"), name)


class Reference:
    """A model's processor in transformers. Its image processor returns values from 0 to 255."""

    def __init__(self, directory: Path):
        config = read_object(directory / "config.json")
        is_pixtral = config["vision_config"].get("model_type") == "pixtral"  # which is LLaVA's in Pixtral 12B
        self.kind = "mistral3" if is_pixtral else config["model_type"]
        self.images: Any = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
        self.images.do_rescale = self.images.do_normalize = False
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
        self._fields = read_object(directory / "processor_config.json")

    def process(self, images: Sequence[Image.Image], **options: Any) -> Any:
        """Returns what the image processor makes of the images of one prompt."""
        if self.kind == "internvl":
            options["crop_to_patches"] = True  # as its processor does
        if self.kind == "mistral3":
            options["patch_size"] = self._fields["patch_size"] * self._fields["spatial_merge_size"]
        if self.kind == "idefics3":
            options["return_row_col_info"] = True
        return self.images([list(images)], input_data_format="channels_last", **options)

    def views(self, images: Sequence[Image.Image]) -> Any:
        """Returns the values of views, [view, channel, height, width], or in patches if the processor makes them.

        The first image's come first.
        """
        found = self.process(images)["pixel_values"]
        values = np.asarray(found if np.ndim(found[0]) in (1, 3) else found[0])
        is_overview_first = self.kind in ("llava_next", "llava_onevision") and len(values) > 1
        return np.concatenate([values[1:], values[:1]]) if is_overview_first else values

    def ids(self, messages: list[dict[str, Any]], images: Sequence[Image.Image]) -> list[int]:
        """Returns the ids of a chat with these images."""
        processor: Any = object.__new__(import_class(PROCESSORS[self.kind]))
        vars(processor).update(self._attributes(), tokenizer=self.tokenizer, image_processor=self.images)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        first, *others = text.split(processor.image_token)
        inputs = self.process(images)
        assert len(others) == len(images)
        expanded = [processor.replace_image_token(inputs, index) + other for index, other in enumerate(others)]
        return self.tokenizer(first + "".join(expanded))["input_ids"]

    def _attributes(self) -> dict[str, Any]:
        match self.kind:
            case "gemma3":
                soft = "<image_soft_token>" * self._fields["image_seq_length"]
                sequence = f"\n\n<start_of_image>{soft}<end_of_image>\n\n"
                return {"image_token": "<start_of_image>", "full_image_sequence": sequence}
            case "gemma4":
                return {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"}
            case "idefics3":
                fake = {"fake_image_token": "<fake_token_around_image>", "global_image_tag": "<global-img>"}
                return {"image_token": "<image>", **fake, "image_seq_len": self._fields["image_seq_len"]}
            case "internvl":
                marks = {"start_image_token": "<img>", "end_image_token": "</img>"}
                length = self._fields["image_seq_length"]
                return {"image_token": "<IMG_CONTEXT>", **marks, "image_seq_length": length}
            case "qwen2_5_vl" | "qwen3_vl" | "qwen3_5":
                return {"image_token": "<|image_pad|>"}
            case _:
                return {"num_additional_image_tokens": 0, **self._fields}
