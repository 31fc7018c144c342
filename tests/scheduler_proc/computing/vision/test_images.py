"""Whole images, as the launcher, the rules of sizes and the towers treat them, with a GGUF file for the tower."""

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image

from runtime.images.layout import Budget
from runtime.images.pixels import make_views
from runtime.images.registry import read_rule
from scheduler_proc.computing.vision.load_tower import load_tower
from supervisor.model.vision import read_vision_facts
from tests.checkpoints import make_config
from tests.mmproj_files import write_mmproj
from tests.scheduler_proc.computing.vision import towers
from tests.vision_models import make_vision_model


def _rows(model_dir: Path, image: Image.Image, mmproj: Path | None) -> torch.Tensor:
    config, facts = make_config(model_dir), read_vision_facts(model_dir, mmproj)
    assert facts is not None
    layout = read_rule(facts).layout(image.size, Budget(), 1)
    views = [torch.from_numpy(np.array(view)) for view in make_views(image, layout)]
    return load_tower(replace(config, facts=replace(config.facts, vision=facts)), lambda *_: None).encode(views, layout)


@pytest.mark.parametrize("family", ["idefics3", "gemma3", "internvl", "lfm2_vl"])
def test_a_file_has_the_same_rows_as_its_checkpoint(tmp_path: Path, family: str):
    sizes = {"patch_size": 16, "image_size": 64} if family == "lfm2_vl" else {}
    model_dir = make_vision_model(family, tmp_path / "model", vision_layers=3, **sizes)
    image = Image.fromarray(np.random.default_rng(9).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    file = write_mmproj(family, model_dir, tmp_path / "mmproj.gguf")
    assert towers.distance(_rows(model_dir, image, file), _rows(model_dir, image, None)) < towers.NEAR
