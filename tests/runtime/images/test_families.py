"""Each family's views are transformers' views, bit by bit, whatever the image's size and mode."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from runtime.images.families.lfm2_vl import Lfm2Vl
from runtime.images.layout import MAX_RESIZED_PIXELS, Budget, Layout, check_cost
from runtime.images.registry import RULES, read_rule
from runtime.images.rule import Rule
from tests.runtime.images.references import SIZES, Reference, facts_of, import_class, picture, views_of
from tests.vision_models import SAMPLES, make_vision_model

FAMILIES = [name for name in SAMPLES if name != "lfm2_vl"]
NO_BUDGET = Budget()


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Rule, Reference]:
    directory = make_vision_model(request.param, tmp_path_factory.mktemp("models") / request.param)
    return read_rule(facts_of(directory)), Reference(directory)


def check_views(rule: Rule, reference: Reference, images: list[Image.Image]) -> None:
    """Compares the views of the first of several images."""
    layout = rule.layout(images[0].size, NO_BUDGET, len(images))
    views = views_of(images[0], layout)
    expected = reference.views(images)
    if reference.kind in ("qwen2_5_vl", "qwen3_vl", "qwen3_5"):
        [view] = views
        patches, *grid = reference.images.patchify(
            view.transpose(2, 0, 1), reference.images.patch_size, reference.images.merge_size, 2
        )
        assert np.array_equal(patches, expected[: len(patches)])
        assert tuple(side // reference.images.merge_size for side in grid) == layout.grid
    elif reference.kind == "gemma4":
        [view] = views
        height, width, side = *view.shape[:2], reference.images.patch_size
        patches = view.reshape(height // side, side, width // side, side, 3).transpose(0, 2, 1, 3, 4)
        assert np.array_equal(patches.reshape(-1, side * side * 3), expected[: height * width // side**2])
    else:
        assert np.array_equal(np.stack(views).transpose(0, 3, 1, 2), expected[: len(views)])


@pytest.mark.parametrize("size", SIZES)
def test_views_are_those_of_transformers(model: tuple[Rule, Reference], size: tuple[int, int]):
    """Report 26: images of a few pixels, too. Report 35: the layout is never guessed from the shape."""
    check_views(*model, [picture(size)])


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_modes_are_those_of_transformers(model: tuple[Rule, Reference], mode: str):
    image = picture((70, 45)).convert(mode).convert("RGB")
    check_views(*model, [image])


def test_several_images_of_a_prompt(model: tuple[Rule, Reference]):
    check_views(*model, [picture((80, 50)), picture((80, 50))])


def test_limits_of_one_among_several_images_give_the_same_layout(model: tuple[Rule, Reference]):
    rule, _ = model
    for number in (1, 2, 5):
        limited = rule.layout((80, 50), rule.limit(NO_BUDGET, number), 1)
        assert limited == rule.layout((80, 50), NO_BUDGET, number)


def test_a_budget_of_tokens_is_kept(model: tuple[Rule, Reference]):
    rule, reference = model
    whole = rule.layout((640, 480), NO_BUDGET, 1)
    if reference.kind in ("gemma3", "llava"):
        assert rule.layout((640, 480), Budget(max_tokens=1, max_pixels=1), 1) == whole
        return
    counts = [rule.layout((640, 480), Budget(max_tokens=limit), 1).num_tokens for limit in range(1, whole.num_tokens)]
    assert counts == sorted(counts)
    fitting = [limit for limit, count in enumerate(counts, 1) if count <= limit]
    assert fitting == list(range(fitting[0] if fitting else whole.num_tokens, whole.num_tokens))
    assert len(fitting) > 1 or reference.kind == "gemma4"


def test_a_budget_of_pixels_is_kept(model: tuple[Rule, Reference]):
    rule, reference = model
    whole = rule.layout((640, 480), NO_BUDGET, 1)
    small = rule.layout((640, 480), Budget(max_pixels=40 * 40), 1)
    if reference.kind in ("gemma3", "gemma4", "llava"):
        return
    assert small.num_tokens < whole.num_tokens
    assert math.prod(small.pad or small.resizes[-1]) <= 40 * 40


def test_the_text_has_the_tokens_of_the_layout(model: tuple[Rule, Reference]):
    rule, _ = model
    for size in SIZES:
        layout = rule.layout(size, NO_BUDGET, 1)
        assert rule.text(layout).count(rule.placeholder) == layout.num_tokens
    assert rule.part.count(rule.marker) == 1


def test_strips_are_refused_or_cheap(model: tuple[Rule, Reference]):
    rule, _ = model
    for size in ((50_000_000, 1), (1, 50_000_000), (7000, 7000), (100_000, 3)):
        try:
            layout = rule.layout(size, NO_BUDGET, 1)
            check_cost(layout)
        except ValueError as error:
            if "side" not in str(error):
                raise
            continue
        assert layout.num_tokens <= 20_000
        assert all(0 < math.prod(each) <= MAX_RESIZED_PIXELS for each in layout.resizes)


def test_gemma_4_uses_the_budgets_it_was_trained_with(tmp_path: Path):
    rule = msgspec.convert(
        {**COMMON, "marker": "a", "placeholder": "a", "part": "a", "cell": 48, "max_tokens": 280}
        | {"is_two_way": True},
        RULES["gemma4"],
    )
    counts = [rule.layout((1000, 1000), Budget(max_tokens=limit), 1).num_tokens for limit in (0, 10, 100, 300, 9999)]
    assert counts == [256, 64, 64, 256, 1089]


COMMON = {
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
    "filter": "bilinear",
    "hidden_size": 64,
}
LFM2 = {"resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@pytest.mark.parametrize("size", [*SIZES, (1500, 1100), (2000, 3000), (4000, 700), (1, 4000)])
def test_layouts_of_lfm2_vl_are_those_of_transformers(size: tuple[int, int]):
    """Its processor needs torchvision for the pixels, but not for their number."""
    rule = Lfm2Vl.read(LFM2, {"hidden_size": 64})
    layout = rule.layout(size, NO_BUDGET, 1)
    processor: Any = object.__new__(import_class("lfm2_vl.image_processing_lfm2_vl.Lfm2VlImageProcessor"))
    texts: Any = object.__new__(import_class("lfm2_vl.processing_lfm2_vl.Lfm2VlProcessor"))
    marks = {"image": "<image>", "image_start": "<|image_start|>", "image_end": "<|image_end|>"}
    vars(texts).update(
        {f"{name}_token": mark for name, mark in marks.items()}, image_thumbnail_token="<|img_thumbnail|>"
    )
    width, height = size
    budget = {"max_image_tokens": 256, "encoder_patch_size": 16, "downsample_factor": 2}
    view = processor.smart_resize(height, width, min_image_tokens=64, **budget)
    lines = columns = 1
    if processor._is_image_too_large(height, width, max_pixels_tolerance=2.0, **budget):
        columns, lines, *resized, _ = processor._get_grid_layout(height, width, 2, 10, 512)
        assert layout.resizes == (tuple(resized),)
        assert layout.overview == view
    else:
        assert layout.resizes == (view,)
    num_tokens = texts._compute_tokens_for_image(view[::-1], 16, 2)
    assert rule.text(layout) == texts._build_image_tokens(lines, columns, 256, num_tokens, True, True)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision makes them otherwise")
def test_views_of_lfm2_vl_have_different_sizes():
    rule = Lfm2Vl.read(LFM2, {"hidden_size": 64})
    layout: Layout = rule.layout((2000, 1400), NO_BUDGET, 1)
    views = views_of(picture((2000, 1400)), layout)
    assert {view.shape for view in views[:-1]} == {(512, 512, 3)}
    assert views[-1].shape == (layout.grid[0] * 32, layout.grid[1] * 32, 3)
