"""Reads how a model prepares images from the files of its processor, before any process starts."""

from pathlib import Path
from typing import Any, cast

import msgspec

from messages.config.images import ImageConfig, VisionFacts
from messages.config.server import ModelFacts
from messages.errors import BootError, SluiceError, quoted
from runtime.images.registry import FAMILIES, RULES
from runtime.model_files import read_object, refused_errors
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
            vision = read_vision_facts(model_dir, read_object(model_dir / "config.json"), images.mmproj)
    except UnknownTowerError as error:
        if console is not None:
            console.show(f"the model is served without images: {error}", "warning")
        vision = None
    return msgspec.structs.replace(facts, vision=vision)


def read_vision_facts(model_dir: Path, config: dict[str, Any], mmproj: str = "") -> VisionFacts | None:
    """Returns the facts of the model in `model_dir`, whose whole config.json is `config`; `None` if it reads no images.

    Raises `UnknownTowerError`, and `BootError` for files that are wrong.
    """
    if mmproj == NONE or not isinstance(config.get("vision_config"), dict):
        return None
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise UnknownTowerError(f"the vision tower of {quoted(config.get('model_type'))} is not known")
    processor = _read_processor(model_dir)
    if processor is None:
        raise UnknownTowerError(f"there is no {' or '.join(PROCESSOR_FILES)} in {model_dir}")
    try:
        rule = RULES[family].read(processor, config)
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
