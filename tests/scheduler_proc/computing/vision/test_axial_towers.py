"""Encodings of towers that rotate by line and column against transformers' `get_image_features`."""

from collections.abc import Sequence
from pathlib import Path

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

SIZES_OF_GEMMA4 = [(24, 24), (72, 48), (24, 120)]
"""Its rows are averages of squares of three patches."""

TOWERS = {"qwen3_5": "qwen3_vl", "pixtral_12b": "pixtral"}
NUM_ROWS = {"gemma4": 24, "pixtral_12b": 216} | dict.fromkeys(("qwen2_5_vl", "qwen3_vl", "qwen3_5", "pixtral"), 54)
"""The rows of an image of 144 x 96 pixels."""


class Reference:
    """The model in transformers, in float32."""

    def __init__(self, model_dir: Path):
        kind = transformers.AutoModelForImageTextToText
        self._model = kind.from_pretrained(model_dir, attn_implementation="eager").float()
        self._images = transformers.AutoImageProcessor.from_pretrained(model_dir, do_resize=False)

    def rows(self, views: Sequence[Tensor]) -> Tensor:
        """Returns the rows of an image, deepstack features after the others."""
        pixels = [view.permute(2, 0, 1).numpy() for view in views]
        found = self._images(pixels, input_data_format="channels_first").convert_to_tensors("pt")
        with torch.no_grad():
            features = self._model.model.get_image_features(**found, return_dict=True)
        parts = [features.pooler_output, *(getattr(features, "deepstack_features", None) or ())]
        return torch.cat([part if isinstance(part, Tensor) else torch.cat(list(part)) for part in parts], 1)


@pytest.mark.parametrize("family", NUM_ROWS)
def test_images_of_any_shape(tmp_path: Path, family: str):
    model_dir = make_vision_model(family, tmp_path / "model", vision_layers=4)
    reference, tower = Reference(model_dir), towers.load(TOWERS.get(family, family), model_dir)
    for size in SIZES_OF_GEMMA4 if family == "gemma4" else SIZES:
        views = towers.random_views(size)
        expected = reference.rows(views)
        assert tower.row_width == expected.shape[1]
        for _ in range(2):
            assert towers.distance(tower.encode(views, towers.layout_of(len(expected))), expected) < NEAR, size


@pytest.mark.parametrize("family", list(NUM_ROWS))
def test_a_gguf_file_has_the_same_tower(tmp_path: Path, family: str):
    model_dir = make_vision_model(family, tmp_path / "model", vision_layers=4)
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", family, model_dir)
    views = towers.random_views((144, 96))
    name = TOWERS.get(family, family)
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
