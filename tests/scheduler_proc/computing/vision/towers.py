"""Loads the tower of a checkpoint of `tests/vision_models.py`, and encodes views with it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from torch import Tensor

from messages.config.images import VisionFacts
from messages.config.server import Config
from runtime.images.layout import Layout
from scheduler_proc.computing.vision.load_tower import load_tower
from scheduler_proc.computing.vision.view_tower import ViewTower
from tests.checkpoints import make_config

NEAR = 1e-4
"""The distance in float32, as a part of the encodings' spread."""


def vision_config(family: str, model_dir: Path, mmproj: Path | str = "", **flags: Any) -> Config:
    """Returns a configuration that serves the model with its tower."""
    config = make_config(model_dir, **flags)
    processor = (model_dir / "preprocessor_config.json").read_bytes()
    facts = VisionFacts(family=family, processor=processor, mmproj=str(mmproj))
    return replace(config, facts=replace(config.facts, vision=facts))


def load(family: str, model_dir: Path, mmproj: Path | str = "", **flags: Any) -> ViewTower:
    return load_tower(vision_config(family, model_dir, mmproj, **flags), lambda *_: None)


def random_views(*sizes: tuple[int, int], seed: int = 3) -> list[Tensor]:
    """Returns views of these widths and heights."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


def normalized(views: Sequence[Tensor], model_dir: Path) -> Tensor:
    """Returns views of one size as an image processor of transformers makes them, float32 [V, 3, H, W]."""
    fields = json.loads((model_dir / "preprocessor_config.json").read_bytes())
    mean, std = (torch.tensor(fields[name]) for name in ("image_mean", "image_std"))
    return ((torch.stack(list(views)).float() / 255 - mean) / std).permute(0, 3, 1, 2)


def layout_of(num_tokens: int, **fields: Any) -> Layout:
    """Returns a layout of which towers need little more than the number of tokens."""
    return Layout(**{"resizes": ((8, 8),), "filter": "bicubic", "num_tokens": num_tokens} | fields)


def distance(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, as a part of the expected values' spread."""
    assert found.shape == expected.shape
    return float((found.float() - expected.float()).abs().max() / expected.float().std())


def features(model_dir: Path, **inputs: Tensor) -> Tensor:
    """Returns the rows of one image, as transformers computes them in float32."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(model_dir, attn_implementation="eager").float()
    with torch.no_grad():
        found = model.model.get_image_features(**inputs).pooler_output
    return torch.cat([each.flatten(0, -2) for each in found]) if isinstance(found, Sequence) else found.flatten(0, -2)
