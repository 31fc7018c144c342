"""Loads the vision tower of a model, from its Hugging Face directory or from a GGUF file of its own (mmproj)."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import isqrt
from pathlib import Path
from typing import NamedTuple

import torch

from messages.config.images import VisionFacts
from messages.config.server import Config
from messages.errors import BootError
from runtime.gguf.conversion import HfTensor
from runtime.gguf.gguf_file import GgufFile, read_gguf
from runtime.images.layout import Budget
from runtime.images.registry import read_rule
from runtime.model_files import refused_errors
from scheduler_proc.computing.backends.registry import find_backend
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.loading.checkpoint import Checkpoint
from scheduler_proc.computing.loading.open_weights import open_weights
from scheduler_proc.computing.loading.sources.gguf_part import GgufPart
from scheduler_proc.computing.loading.weights import find_segments, load_weights, make_dummy_weights, max_bytes
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.vision.description import TowerDescription, TowerShard
from scheduler_proc.computing.vision.family import Names, TowerFamily, tensor_names
from scheduler_proc.computing.vision.mmproj import names_in_file, read_config
from scheduler_proc.computing.vision.view_tower import TowerParts, ViewTower, activation_bytes

MIB, MILLION = 1 << 20, 1_000_000


def load_tower(config: Config, phase: Report) -> ViewTower:
    """Returns the model's tower; calls `phase` with each phase of loading.

    Its weights have the model's formats (`--dtype`, `--quantization`). Raises `BootError` for a tower that is not
    supported, and for weights that do not fit it.
    """
    facts = config.facts.vision
    assert facts is not None, "the model has a tower"
    with refused_errors(facts.mmproj or config.facts.model_dir):
        find_backend(config.model).load_kernels(config.model, phase)  # first: the model's dtype depends on them
        found = _find(config, facts)
        shard = TowerShard(found.description)
        if found.files is None:
            weights = make_dummy_weights(shard, found.placement, phase)
        else:
            checkpoint, names = found.files
            weights = load_weights(shard, tensor_names(names), checkpoint, found.placement, phase)
        processor = json.loads(facts.processor)
        mean, std = (processor.get(name) or default for name, default in (("image_mean", [0.0]), ("image_std", [1.0])))
        return found.family.make(TowerParts(found.description, weights, mean, std, found.row_dtype, found.config))


class _Found(NamedTuple):
    """A tower that is not loaded. `placement` is its own, `row_dtype` the model's. Without `files`, it is random."""

    family: TowerFamily
    config: HfConfig
    description: TowerDescription
    placement: Placement
    row_dtype: torch.dtype
    files: tuple[Checkpoint, Names] | None


class ImageNeeds(NamedTuple):
    """The bytes that images take: of the towers of all encoders, and of an engine's encodings."""

    tower_bytes: int = 0
    cache_bytes: int = 0


NO_IMAGES = ImageNeeds()


def measure_images(config: Config) -> ImageNeeds:
    """Finds the bytes by the headers of the tower's files. Raises `BootError` as loading would."""
    facts = config.facts.vision
    if facts is None:
        return NO_IMAGES
    with refused_errors(facts.mmproj or config.facts.model_dir):
        found = _find(config, facts)
        shard, segments = TowerShard(found.description), None
        if found.files is not None:
            checkpoint, names = found.files
            segments = find_segments(shard, tensor_names(names), checkpoint)
        tower_bytes = max_bytes(shard, found.placement, segments or {})
        tower_bytes += activation_bytes(found.description, _max_patches(config, found), found.placement.dtype)
        return ImageNeeds(tower_bytes * config.images.encoder_workers, int(config.images.image_cache_mb * MIB))


def _max_patches(config: Config, found: _Found) -> int:
    """Returns the patches of the largest view, which that of a square image is about."""
    facts, side = config.facts.vision, isqrt(config.images.max_image_pixels * MILLION)
    assert facts is not None
    layout = read_rule(facts).layout((side, side), Budget(max_tokens=config.images.image_max_tokens), 1)
    width, height = layout.tile or layout.crop or layout.pad or layout.resizes[-1]
    return width * height // found.description.patch_size**2


def find_placement(config: Config) -> Placement:
    """Returns where the model's tower is, and in which formats. Raises `BootError`."""
    return _own_placement(config, _model_placement(config))


def _model_placement(config: Config) -> Placement:
    hf_config = read_hf_config(Path(config.facts.model_dir))
    return find_backend(config.model).find_placement(config.model, config.cache, hf_config)


def _find(config: Config, facts: VisionFacts) -> _Found:
    family: TowerFamily = import_module(f"{__package__}.families.{facts.family}").FAMILY
    file = read_gguf(Path(facts.mmproj)) if facts.mmproj else None
    hf_config = (
        read_hf_config(Path(config.facts.model_dir)) if file is None else HfConfig(read_config(file), facts.mmproj)
    )
    description, placement = family.describe(hf_config), _model_placement(config)
    _check_width(description, facts)
    own = _own_placement(config, placement)
    return _Found(family, hf_config, description, own, placement.dtype, _open(config, family, file))


def _check_width(description: TowerDescription, facts: VisionFacts) -> None:
    if facts.row_width not in (0, description.row_width):
        where = facts.mmproj or "config.json"
        raise BootError(
            f"{where}: the tower's rows have {description.row_width} numbers, but the model takes {facts.row_width}; "
            "is it another model's tower?"
        )


def _own_placement(config: Config, placement: Placement) -> Placement:
    """Returns where the tower is: with `--dtype auto` in its fastest dtype, which may not be the model's."""
    if config.model.dtype != "auto":
        return placement
    return replace(placement, dtype=find_backend(config.model).product_dtype(placement))


def _open(config: Config, family: TowerFamily, file: GgufFile | None) -> tuple[Checkpoint, Names] | None:
    """Returns the files of the tower's weights, and the names of tensors in them; `None` if weights are random."""
    if config.model.load_format == "dummy":
        return None
    if file is None:
        checkpoint = open_weights(Path(config.facts.model_dir), config.model.load_format)
        return checkpoint, family.names_in(checkpoint.files)
    tensors = {
        name: HfTensor(tensor, **family.changes.get(name.rpartition(".")[0].rpartition(".")[2], {}))
        for name, tensor in file.tensors.items()
    }
    names = names_in_file(family.names_in(tensors), file)
    return Checkpoint(list(file.paths), partial(GgufPart, tensors=tensors)), names
