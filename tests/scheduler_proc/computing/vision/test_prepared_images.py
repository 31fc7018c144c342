"""Images from a client's file to rows: prepared and encoded as transformers does, whatever their size."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace
from PIL import Image
from torch import Tensor

from runtime.images.layout import Budget
from runtime.images.registry import read_rule
from scheduler_proc.computing.vision.load_tower import load_tower
from tests.checkpoints import make_config
from tests.runtime.images.references import SIZES, Reference, facts_of, picture, views_of
from tests.scheduler_proc.computing.vision.towers import distance
from tests.vision_models import SAMPLES, make_vision_model

FAMILIES = [name for name in SAMPLES if name != "lfm2_vl"]  # which has no processor without torchvision
SMALLEST_FOR_TRANSFORMERS = {"pixtral": 17}
"""transformers cannot encode a Pixtral image of a single token."""


def rows_of_transformers(model: Any, reference: Reference, image: Image.Image) -> Tensor:
    """Returns the rows [token, width] of an image, without deepstack features."""
    inputs = reference.process([image], return_tensors="pt")
    inputs = {name: value for name, value in inputs.items() if name not in ("rows", "cols", "num_crops", "num_patches")}
    inputs.pop("num_soft_tokens_per_image", None)
    owner = model.model if reference.kind == "idefics3" else model
    with torch.no_grad():
        found = owner.get_image_features(**inputs)
    found = getattr(found, "pooler_output", found)
    parts = [found] if isinstance(found, Tensor) else list(found)
    return torch.cat([part.flatten(0, -2) for part in parts])


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_transformers(tmp_path: Path, family: str):
    directory = make_vision_model(family, tmp_path / family)
    facts = facts_of(directory)
    config = make_config(directory, dtype="float32")
    tower = load_tower(replace(config, facts=replace(config.facts, vision=facts)), lambda *_: None)
    rule, reference = read_rule(facts), Reference(directory)
    reference.images.do_rescale, reference.images.do_normalize = True, reference.kind != "gemma4"
    kind = getattr(transformers, SAMPLES[family].architecture)
    model = kind.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32).eval()
    for size in SIZES:
        if max(size) < SMALLEST_FOR_TRANSFORMERS.get(family, 1):
            continue
        image, layout = picture(size), rule.layout(size, Budget(), 1)
        rows = tower.encode([torch.tensor(view) for view in views_of(image, layout)], layout)
        assert rows.shape == (layout.num_tokens, rule.row_width)
        assert distance(rows[:, : rule.hidden_size], rows_of_transformers(model, reference, image)) < 1e-4, size
