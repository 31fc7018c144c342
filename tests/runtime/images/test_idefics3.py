"""Idefics3's tiles are transformers' tiles, and a smaller budget means fewer of them."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from runtime.images.layout import Budget
from runtime.images.registry import read_rule
from tests.runtime.images.references import SIZES, Reference, facts_of, picture, views_of
from tests.vision_models import make_vision_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model("idefics3", tmp_path_factory.mktemp("models") / "idefics3")


@pytest.mark.parametrize("size", [*SIZES, (2000, 3), (3, 2000), (129, 128)])
@pytest.mark.parametrize("splits", [True, False])
def test_views_are_those_of_transformers(directory: Path, size: tuple[int, int], splits: bool):
    rule = msgspec.structs.replace(read_rule(facts_of(directory)), splits=splits)
    processor = Reference(directory)
    image = picture(size)
    layout = rule.layout(size, Budget(), 1)
    views = views_of(image, layout)
    expected = processor.process([image], do_image_splitting=splits)
    assert layout.tiles == (expected["rows"][0][0], expected["cols"][0][0])
    assert np.array_equal(np.stack(views).transpose(0, 3, 1, 2), expected["pixel_values"][0])
    assert layout.num_tokens == len(views) * 4


def test_a_smaller_budget_means_fewer_tiles(directory: Path):
    rule = read_rule(facts_of(directory))
    numbers = [rule.layout((640, 480), Budget(max_tokens=limit), 1).num_tokens for limit in (0, 67, 40, 28, 10, 3)]
    assert numbers == [52, 52, 40, 20, 4, 4]
    by_pixels = rule.layout((640, 480), Budget(max_pixels=96 * 96), 1)
    assert by_pixels.resizes == ((96, 72), (96, 96))


def test_a_single_tile_is_the_whole_image(directory: Path):
    layout = read_rule(facts_of(directory)).layout((640, 480), Budget(max_tokens=4), 1)
    assert layout.resizes == ((32, 24), (32, 32))
    assert layout.tiles == (0, 0)
