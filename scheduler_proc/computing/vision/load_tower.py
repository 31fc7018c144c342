"""Loads the vision tower of a model, from its Hugging Face directory or from a GGUF file of its own (mmproj)."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from messages.config.images import VisionFacts
from messages.config.server import Config
from messages.errors import BootError
from runtime.gguf.conversion import HfTensor
from runtime.gguf.gguf_file import GgufFile, read_gguf
from runtime.machine import CPU_INFO, TILES_FLAG, computes_bfloat16
from runtime.model_files import refused_errors
from scheduler_proc.computing.backends.registry import find_backend
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.loading.checkpoint import Checkpoint
from scheduler_proc.computing.loading.open_weights import open_weights
from scheduler_proc.computing.loading.sources.gguf_part import GgufPart
from scheduler_proc.computing.loading.weights import load_weights, make_dummy_weights
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.vision.description import TowerDescription, TowerShard
from scheduler_proc.computing.vision.family import Names, TowerFamily, TowerParts, tensor_names
from scheduler_proc.computing.vision.mmproj import names_in_file, read_config
from scheduler_proc.computing.vision.tower import Tower


def load_tower(config: Config, phase: Report) -> Tower:
    """Returns the model's tower; calls `phase` with each phase of loading.

    Its weights have the model's formats (`--dtype`, `--quantization`). Raises `BootError` for a tower that is not
    supported, and for weights that do not fit it.
    """
    facts = config.facts.vision
    assert facts is not None, "the model has a tower"
    family: TowerFamily = import_module(f"{__package__}.families.{facts.family}").FAMILY
    with refused_errors(facts.mmproj or config.facts.model_dir):
        backend, model_config = find_backend(config.model), read_hf_config(Path(config.facts.model_dir))
        backend.load_kernels(phase)
        placement = backend.find_placement(config.model, config.cache, model_config)
        file = read_gguf(Path(facts.mmproj)) if facts.mmproj else None
        hf_config = model_config if file is None else HfConfig(read_config(file), facts.mmproj)
        description = family.describe(hf_config)
        _check_width(description, facts)
        shard, own = TowerShard(description), _own_placement(config, placement)
        found = _open(config, family, file)
        if found is None:
            weights = make_dummy_weights(shard, own, phase)
        else:
            checkpoint, names = found
            weights = load_weights(shard, tensor_names(names), checkpoint, own, phase)
        processor = json.loads(facts.processor)
        mean, std = (processor.get(name) or default for name, default in (("image_mean", [0.0]), ("image_std", [1.0])))
        return family.make(TowerParts(description, weights, mean, std, placement.dtype, hf_config))


def _check_width(description: TowerDescription, facts: VisionFacts) -> None:
    if facts.row_width not in (0, description.row_width):
        where = facts.mmproj or "config.json"
        raise BootError(
            f"{where}: the tower's rows have {description.row_width} numbers, but the model takes {facts.row_width}; "
            "is it another model's tower?"
        )


def _own_placement(config: Config, placement: Placement) -> Placement:
    """Returns where the tower is: with `--dtype auto` on a CPU in the dtype that it multiplies fastest.

    A tower computes many patches with each weight, a model few tokens: the model's dtype may be another.
    """
    if config.model.dtype == "auto" and placement.device.type == "cpu":
        has_tiles = computes_bfloat16(CPU_INFO, by=frozenset({TILES_FLAG}))
        return replace(placement, dtype=torch.bfloat16 if has_tiles else torch.float32)
    return placement


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
