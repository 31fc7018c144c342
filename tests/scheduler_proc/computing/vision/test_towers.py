"""Encodings of all families against transformers' `get_image_features`, from Hugging Face checkpoints."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.scheduler_proc.computing.vision import towers
from tests.vision_models import make_vision_model

NEAR = 1e-4


def _features(model_dir: Path, make_inputs: Callable[[Any], dict[str, Any]]) -> Tensor:
    """Returns the rows of all images, as transformers computes them in float32."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(model_dir, attn_implementation="eager").float()
    with torch.no_grad():
        found = model.model.get_image_features(**make_inputs(model.config)).pooler_output
    return torch.cat([each.flatten(0, -2) for each in found]) if isinstance(found, Sequence) else found.flatten(0, -2)


@pytest.mark.parametrize("num_views", [1, 5])
def test_views_of_whole_tiles(tmp_path: Path, num_views: int):
    model_dir = make_vision_model("idefics3", tmp_path / "model")
    views = towers.random_views(*[(32, 32)] * num_views)
    expected = _features(model_dir, lambda _: {"pixel_values": towers.normalized(views, model_dir)[None]})
    found = towers.load("idefics3", model_dir).encode(views, towers.layout_of(len(expected)))
    assert towers.distance(found, expected) < NEAR
