"""Encodings of all families against transformers' `get_image_features`, from Hugging Face checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers.models.llava_next.modeling_llava_next import unpad_image

from tests.mmproj_files import write_mmproj
from tests.scheduler_proc.computing.vision import towers
from tests.vision_models import make_vision_model, randomize

VIEW = 32, 32


def _assert_near(family: str, model_dir: Path, views: Sequence[Tensor], expected: Tensor, **layout: Any) -> None:
    found = towers.load(family, model_dir).encode(views, towers.layout_of(len(expected), **layout))
    assert towers.distance(found, expected) < towers.NEAR


@pytest.mark.parametrize("num_views", [1, 5])
def test_idefics3(tmp_path: Path, num_views: int):
    model_dir = make_vision_model("idefics3", tmp_path)
    views = towers.random_views(*[VIEW] * num_views)
    expected = towers.features(model_dir, pixel_values=towers.normalized(views, model_dir)[None])
    _assert_near("idefics3", model_dir, views, expected)


def test_idefics3_of_views_smaller_than_a_tile(tmp_path: Path):
    """Their positions are at the same fractions of the tower's grid."""
    model_dir = make_vision_model("idefics3", tmp_path, image_size=96)
    views = towers.random_views((48, 48))
    expected = towers.features(model_dir, pixel_values=towers.normalized(views, model_dir)[None])
    assert len(expected) == 9
    _assert_near("idefics3", model_dir, views, expected)


@pytest.mark.parametrize(("family", "num_views"), [("gemma3", 1), ("gemma3", 3), ("internvl", 4), ("llava", 1)])
def test_families_of_square_views(tmp_path: Path, family: str, num_views: int):
    model_dir = make_vision_model(family, tmp_path, vision_layers=3)
    views = towers.random_views(*[VIEW] * num_views)
    expected = towers.features(model_dir, pixel_values=towers.normalized(views, model_dir))
    _assert_near(family, model_dir, views, expected)


def test_the_large_tower_of_internvl(tmp_path: Path):
    """InternViT-6B has RMS norms, also of all queries and of all keys, and no biases of queries, keys and values."""
    model_dir = make_vision_model("internvl", tmp_path)
    config = transformers.AutoConfig.from_pretrained(model_dir)
    config.vision_config.update({"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False})
    model = transformers.AutoModelForImageTextToText.from_config(config)
    randomize(model)
    model.save_pretrained(model_dir)
    views = towers.random_views(VIEW, VIEW)
    expected = towers.features(model_dir, pixel_values=towers.normalized(views, model_dir))
    _assert_near("internvl", model_dir, views, expected)
    file = write_mmproj("internvl", model_dir, tmp_path / "mmproj.gguf")
    found = towers.load("internvl", model_dir, file).encode(views, towers.layout_of(len(expected)))
    assert towers.distance(found, expected) < towers.NEAR


@pytest.mark.parametrize("size", [(33, 200), (500, 470)])
@pytest.mark.parametrize("family", ["llava_next", "llava_onevision"])
def test_families_of_tiles_without_padding(tmp_path: Path, family: str, size: tuple[int, int]):
    """Transformers has the overview first, and an image of 4 x 4 tiles or more than 9 is shrunk.

    `test_prepared_images.py` has other sizes.
    """
    model_dir = make_vision_model(family, tmp_path)
    processor = transformers.AutoImageProcessor.from_pretrained(model_dir)
    image = Image.fromarray(np.random.default_rng(7).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    pixels = processor([image], return_tensors="pt")["pixel_values"]
    sizes = torch.tensor([[size[1], size[0]]])
    expected = towers.features(model_dir, pixel_values=pixels, image_sizes=sizes)
    overview, *tiles = _views_of(pixels[0])
    config = transformers.AutoConfig.from_pretrained(model_dir)
    lines, columns = _tiles_of(size, config.image_grid_pinpoints)
    assert len(tiles) == lines * columns
    grid = unpad_image(torch.zeros(1, 4 * lines, 4 * columns), sizes[0].tolist()).shape[1:]
    canvas = 32 * columns, 32 * lines
    _assert_near(
        family, model_dir, [*tiles, overview], expected, resizes=(canvas,), tile=VIEW, overview=VIEW, grid=tuple(grid)
    )


def _tiles_of(size: tuple[int, int], pinpoints: list[list[int]]) -> tuple[int, int]:
    height, width = transformers.image_processing_utils.select_best_resolution((size[1], size[0]), pinpoints)
    return height // VIEW[1], width // VIEW[0]


def _views_of(pixels: Tensor) -> list[Tensor]:
    """Returns the views that an image processor with means and deviations of 0.5 has normalized."""
    return list(((pixels * 0.5 + 0.5) * 255).round().to(torch.uint8).permute(0, 2, 3, 1))


def test_llava_onevision_without_tiles(tmp_path: Path):
    """Several images have one view each."""
    model_dir = make_vision_model("llava_onevision", tmp_path)
    views = towers.random_views(VIEW, VIEW)
    expected = towers.features(
        model_dir,
        pixel_values=towers.normalized(views, model_dir)[:, None],
        image_sizes=torch.tensor([[60, 90], [30, 20]]),
        batch_num_images=torch.tensor([2]),
    )
    for view, its_own in zip(views, expected.chunk(2), strict=True):
        _assert_near("llava_onevision", model_dir, [view], its_own)


@pytest.mark.parametrize("size", [(48, 16), (80, 64), (16, 16)])
def test_lfm2_vl(tmp_path: Path, size: tuple[int, int]):
    model_dir = make_vision_model("lfm2_vl", tmp_path)
    views = towers.random_views(size)
    height, width = size[1] // 8, size[0] // 8
    pixels = towers.normalized(views, model_dir)
    patches = pixels.view(1, 3, height, 8, width, 8).permute(0, 2, 4, 3, 5, 1).reshape(1, height * width, -1)
    expected = towers.features(
        model_dir,
        pixel_values=patches,
        spatial_shapes=torch.tensor([[height, width]]),
        pixel_attention_mask=torch.ones(1, height * width, dtype=torch.long),
    )
    _assert_near("lfm2_vl", model_dir, views, expected)


def test_many_views_are_encoded_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model_dir = make_vision_model("idefics3", tmp_path)
    views = towers.random_views(*[VIEW] * 7)
    tower = towers.load("idefics3", model_dir)
    expected = tower.encode(views, towers.layout_of(28))
    monkeypatch.setattr("scheduler_proc.computing.vision.view_tower.PATCHES_AT_ONCE", 33)
    assert torch.equal(tower.encode(views, towers.layout_of(28)), expected)


def test_other_numbers_of_rows_are_refused(tmp_path: Path):
    tower = towers.load("idefics3", make_vision_model("idefics3", tmp_path))
    with pytest.raises(ValueError, match="4 rows for an image of 5 tokens"):
        tower.encode(towers.random_views(VIEW), towers.layout_of(5))
    with pytest.raises(ValueError, match="30 x 32 pixels is not a whole number of patches of 8 x 8"):
        tower.encode(towers.random_views((30, 32)), towers.layout_of(4))
