"""Encodings of towers that rotate by line and column against transformers' `get_image_features`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.scheduler_proc.computing.vision import towers
from tests.scheduler_proc.computing.vision.axial_mmproj import write_mmproj
from tests.vision_models import make_vision_model

NEAR = 1e-4
SIZES = [(32, 16), (64, 48), (144, 16), (48, 112)]
"""Widths and heights of one image each, in whole squares of patches: two squares, wide, tall, uneven windows."""

NUM_ROWS = {"gemma4": 24} | dict.fromkeys(("qwen2_5_vl", "qwen3_vl", "qwen3_5", "pixtral"), 54)
"""The rows of an image of 144 x 96 pixels."""


def expected_rows(model_dir: Path, views: Sequence[Tensor], processor: dict[str, Any]) -> Tensor:
    """Returns the rows of an image, as transformers computes them in float32, deepstack features after the others."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(model_dir, attn_implementation="eager").float()
    images = transformers.AutoImageProcessor.from_pretrained(model_dir, **processor)
    found = images([view.permute(2, 0, 1).numpy() for view in views], input_data_format="channels_first")
    with torch.no_grad():
        features = model.model.get_image_features(**found.convert_to_tensors("pt"), return_dict=True)
    parts = [features.pooler_output, *(getattr(features, "deepstack_features", None) or ())]
    return torch.cat([part if isinstance(part, Tensor) else torch.cat(list(part)) for part in parts], 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5", "pixtral"])
def test_an_image_of_any_shape(tmp_path: Path, family: str, size: tuple[int, int]):
    model_dir = make_vision_model(family, tmp_path / "model", vision_layers=4)
    views = towers.random_views(size)
    expected = expected_rows(model_dir, views, {"do_resize": False})
    tower = towers.load(family.replace("qwen3_5", "qwen3_vl"), model_dir)
    assert tower.row_width == expected.shape[1]
    for _ in range(2):
        assert towers.distance(tower.encode(views, towers.layout_of(len(expected))), expected) < NEAR


@pytest.mark.parametrize("size", [(24, 24), (72, 48), (24, 120)], ids=str)
def test_gemma4_averages_squares_of_three_patches(tmp_path: Path, size: tuple[int, int]):
    model_dir = make_vision_model("gemma4", tmp_path / "model")
    views = towers.random_views(size)
    expected = expected_rows(model_dir, views, {"do_resize": False})
    tower = towers.load("gemma4", model_dir)
    assert towers.distance(tower.encode(views, towers.layout_of(len(expected))), expected) < NEAR


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5", "pixtral", "gemma4"])
def test_a_gguf_file_has_the_same_tower(tmp_path: Path, family: str):
    model_dir = make_vision_model(family, tmp_path / "model", vision_layers=4)
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", family, model_dir)
    views = towers.random_views((144, 96))
    name = family.replace("qwen3_5", "qwen3_vl")
    expected = towers.load(name, model_dir).encode(views, towers.layout_of(NUM_ROWS[family]))
    found = towers.load(name, model_dir, mmproj).encode(views, towers.layout_of(len(expected)))
    assert towers.distance(found, expected) < NEAR


def test_an_old_gguf_file_exchanges_the_tensors_of_the_mlp(tmp_path: Path):
    model_dir = make_vision_model("qwen2_5_vl", tmp_path / "model")
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "qwen2_5_vl", model_dir, exchanges_mlp=True)
    views = towers.random_views((32, 32))
    expected, found = (
        towers.load("qwen2_5_vl", model_dir, path).encode(views, towers.layout_of(4)) for path in ("", mmproj)
    )
    assert towers.distance(found, expected) < NEAR
