"""Reads how a model prepares images from the files of its processor, before any process starts."""

from pathlib import Path
from typing import Any, cast

import msgspec

from messages.config.images import ImageConfig, VisionFacts
from messages.config.server import ModelConfig, ModelFacts
from messages.errors import BootError, quoted
from runtime.images.registry import RULES, family_of
from runtime.images.rule import UnsupportedError
from runtime.model_files import read_config, read_object, refused_errors
from supervisor.console import Console
from supervisor.model.mmproj import NONE, TowerFields, UnknownTowerError, find_mmproj, read_tower_fields

IMAGE_PROCESSOR = "image_processor"
"""The object in processor_config.json that newer checkpoints have instead of preprocessor_config.json."""

CONFIG_FILE = "config.json"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def add_vision_facts(
    facts: ModelFacts, model: ModelConfig, images: ImageConfig, console: Console | None = None
) -> ModelFacts:
    """Returns the facts with those about images. Raises `BootError` for files that are wrong.

    A model whose tower is not known is served without images; `console` shows why.
    """
    model_dir = Path(facts.model_dir)
    try:
        with refused_errors(model_dir):
            path = find_mmproj(images.mmproj, model.model, model_dir)
            vision = None if images.mmproj == NONE else read_vision_facts(model_dir, path)
    except UnknownTowerError as error:
        if console is not None:
            console.show(f"the model is served without images: {error}", "warning")
        vision = None
    return msgspec.structs.replace(facts, vision=vision)


def read_vision_facts(model_dir: Path, mmproj: Path | None = None) -> VisionFacts | None:
    """Returns the facts of the model in `model_dir`, `None` if it reads no images.

    `mmproj` is the GGUF file of its tower. Raises `UnknownTowerError`, and `BootError` for files that are wrong.
    """
    hidden_size = read_config(model_dir / CONFIG_FILE).get("hidden_size")
    try:
        fields = _read_fields(model_dir) if mmproj is None else read_tower_fields(mmproj, hidden_size)
        if fields is None:
            return None
        rule = RULES[fields.family].read(fields.processor, {"hidden_size": hidden_size, **fields.config})
    except UnsupportedError as error:
        raise UnknownTowerError(str(error)) from None
    except ValueError as error:
        raise BootError(f"{mmproj or model_dir}: how images are prepared cannot be read: {error}") from None
    return VisionFacts(
        family=fields.family,
        processor=msgspec.json.encode(rule),
        mmproj=str(mmproj or ""),
        row_width=rule.row_width,
        has_axes=rule.has_axes,
        is_two_way=rule.is_two_way,
    )


def _read_fields(model_dir: Path) -> TowerFields | None:
    """Returns the fields of a model whose tower is in its own files, `None` if it has none."""
    config = read_object(model_dir / CONFIG_FILE)
    if not isinstance(config.get("vision_config"), dict):
        return None
    family = family_of(config)
    if family is None:
        raise UnknownTowerError(f"the vision tower of {quoted(config.get('model_type'))} is not known")
    processor = _read_processor(model_dir)
    if processor is None:
        raise UnknownTowerError(f"there is no {' or '.join(PROCESSOR_FILES)} in {model_dir}")
    return TowerFields(family, processor, config)


def _read_processor(model_dir: Path) -> dict[str, Any] | None:
    """Returns the fields of the image processor and of the processor around it."""
    found = [read_object(path) for name in PROCESSOR_FILES if (path := model_dir / name).is_file()]
    inner = [cast("dict[str, Any]", each) for fields in found if isinstance(each := fields.get(IMAGE_PROCESSOR), dict)]
    merged = {name: value for fields in (*found, *inner) for name, value in fields.items() if value is not None}
    return merged if "image_processor_type" in merged or "image_mean" in merged else None
