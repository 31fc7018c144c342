"""Whole images, as the launcher, the rules of sizes and the towers treat them, against transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
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

FAMILIES = ["idefics3", "gemma3", "internvl", "llava", "llava_next", "llava_onevision"]


def _rows(model_dir: Path, image: Image.Image, mmproj: Path | None = None) -> torch.Tensor:
    config, facts = make_config(model_dir), read_vision_facts(model_dir, mmproj)
    assert facts is not None
    layout = read_rule(facts).layout(image.size, Budget(), 1)
    views = [torch.from_numpy(np.array(view)) for view in make_views(image, layout)]
    return load_tower(replace(config, facts=replace(config.facts, vision=facts)), lambda *_: None).encode(views, layout)


@pytest.mark.parametrize("size", [(90, 60), (31, 200), (1, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_an_image(tmp_path: Path, family: str, size: tuple[int, int]):
    model_dir = make_vision_model(family, tmp_path)
    image = Image.fromarray(np.random.default_rng(9).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    processor = transformers.AutoImageProcessor.from_pretrained(model_dir)
    inputs = processor([image], return_tensors="pt", input_data_format="channels_last")
    names = {"pixel_values", "image_sizes"} if family in ("llava_next", "llava_onevision") else {"pixel_values"}
    expected = towers.features(model_dir, **{name: inputs[name] for name in names})
    assert towers.distance(_rows(model_dir, image), expected) < towers.NEAR


@pytest.mark.parametrize("family", ["idefics3", "gemma3", "internvl", "lfm2_vl"])
def test_a_file_has_the_same_rows_as_its_checkpoint(tmp_path: Path, family: str):
    sizes = {"patch_size": 16, "image_size": 64} if family == "lfm2_vl" else {}
    model_dir = make_vision_model(family, tmp_path / "model", vision_layers=3, **sizes)
    image = Image.fromarray(np.random.default_rng(9).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    file = write_mmproj(family, model_dir, tmp_path / "mmproj.gguf")
    assert towers.distance(_rows(model_dir, image, file), _rows(model_dir, image)) < towers.NEAR
