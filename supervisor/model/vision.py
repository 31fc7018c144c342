"""Reads how a model prepares images from the files of its processor, before any process starts."""

from pathlib import Path
from typing import Any, cast

import msgspec

from messages.config.images import ImageConfig, VisionFacts
from messages.config.server import ModelFacts
from messages.errors import BootError, SluiceError, quoted
from runtime.images.registry import RULES, family_of
from runtime.images.rule import UnsupportedError, text_config
from runtime.model_files import read_config, read_object, refused_errors
from supervisor.console import Console

IMAGE_PROCESSOR = "image_processor"
"""The object in processor_config.json that newer checkpoints have instead of preprocessor_config.json."""

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
NONE = "none"


class UnknownTowerError(SluiceError):
    """The model may read images, but this server does not know how."""


def add_vision_facts(facts: ModelFacts, images: ImageConfig, console: Console | None = None) -> ModelFacts:
    """Returns the facts with those about images. Raises `BootError` for files that are wrong.

    A model whose tower is not known is served without images; `console` shows why.
    """
    model_dir = Path(facts.model_dir)
    try:
        with refused_errors(model_dir):
            vision = read_vision_facts(model_dir, images.mmproj)
    except UnknownTowerError as error:
        if console is not None:
            console.show(f"the model is served without images: {error}", "warning")
        vision = None
    return msgspec.structs.replace(facts, vision=vision)


def read_vision_facts(model_dir: Path, mmproj: str = "") -> VisionFacts | None:
    """Returns the facts of the model in `model_dir`, `None` if it reads no images.

    Raises `UnknownTowerError`, and `BootError` for files that are wrong.
    """
    config = read_object(model_dir / "config.json")
    if mmproj == NONE or not isinstance(config.get("vision_config"), dict):
        return None
    family = family_of(config)
    if family is None:
        raise UnknownTowerError(f"the vision tower of {quoted(config.get('model_type'))} is not known")
    processor = _read_processor(model_dir)
    if processor is None:
        raise UnknownTowerError(f"there is no {' or '.join(PROCESSOR_FILES)} in {model_dir}")
    try:
        text = read_config(model_dir / "config.json")
        hidden_size = text.get("hidden_size") or text_config(config).get("hidden_size")
        rule = RULES[family].read(processor, config | {"hidden_size": hidden_size})
    except UnsupportedError as error:
        raise UnknownTowerError(str(error)) from None
    except ValueError as error:
        raise BootError(f"{model_dir}: the files of the image processor: {error}") from None
    return VisionFacts(
        family=family,
        processor=msgspec.json.encode(rule),
        mmproj=mmproj,
        row_width=rule.row_width,
        has_axes=rule.has_axes,
        is_two_way=rule.is_two_way,
    )


def _read_processor(model_dir: Path) -> dict[str, Any] | None:
    """Returns the fields of the image processor and of the processor around it."""
    found = [read_object(path) for name in PROCESSOR_FILES if (path := model_dir / name).is_file()]
    inner = [cast("dict[str, Any]", each) for fields in found if isinstance(each := fields.get(IMAGE_PROCESSOR), dict)]
    merged = {name: value for fields in (*found, *inner) for name, value in fields.items() if value is not None}
    return merged if "image_processor_type" in merged or "image_mean" in merged else None
