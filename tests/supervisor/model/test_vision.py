"""The launcher reads how images are prepared, and serves a model whose tower is not known without them."""

import json
from pathlib import Path
from typing import Any

import pytest

from messages.config.images import ImageConfig
from messages.config.server import ModelFacts
from messages.errors import BootError
from runtime.images.families.idefics3 import Idefics3
from runtime.images.registry import read_rule
from supervisor.model.vision import add_vision_facts

CONFIG = {
    "model_type": "smolvlm",
    "scale_factor": 4,
    "vision_config": {"patch_size": 16},
    "text_config": {"hidden_size": 960},
}
PREPROCESSOR = {
    "image_processor_type": "SmolVLMImageProcessor",
    "resample": 1,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
}


class Shown:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, text: str, level: str = "info") -> None:
        self.texts.append(f"{level}: {text}")


def facts_of(directory: Path, mmproj: str = "", **files: Any) -> tuple[ModelFacts, list[str]]:
    for name, fields in files.items():
        (directory / f"{name}.json").write_text(json.dumps(fields))
    facts = ModelFacts(model_dir=str(directory), tokenizer_dir="", served_names=(), vocab_size=1, max_model_len=1)
    shown: Any = Shown()
    return add_vision_facts(facts, ImageConfig(mmproj=mmproj), shown), shown.texts


def test_a_rule_is_read_from_the_files(tmp_path: Path):
    facts, shown = facts_of(tmp_path, config=CONFIG, preprocessor_config=PREPROCESSOR)
    assert facts.vision is not None
    assert (facts.vision.family, facts.vision.row_width, shown) == ("idefics3", 960, [])
    rule = read_rule(facts.vision)
    assert isinstance(rule, Idefics3)
    assert (rule.tile_tokens, rule.tile, rule.longest_edge, rule.filter) == (64, 512, 2048, "lanczos")
    assert (rule.image_mean, rule.image_std) == ((0.5,) * 3, (0.5,) * 3)


def test_newer_checkpoints_have_one_file(tmp_path: Path):
    one_file = {"processor_class": "SmolVLMProcessor", "image_seq_len": 64, "image_processor": PREPROCESSOR}
    facts, _ = facts_of(tmp_path, config=CONFIG, processor_config=one_file)
    assert facts.vision is not None
    assert read_rule(facts.vision).hidden_size == 960


@pytest.mark.parametrize("config", [{"model_type": "llama"}, {"model_type": "smolvlm"}])
def test_other_models_read_no_images(tmp_path: Path, config: dict[str, Any]):
    facts, shown = facts_of(tmp_path, config=config)
    assert (facts.vision, shown) == (None, [])


def test_images_can_be_switched_off(tmp_path: Path):
    facts, shown = facts_of(tmp_path, "none", config=CONFIG, preprocessor_config=PREPROCESSOR)
    assert (facts.vision, shown) == (None, [])


def test_a_model_whose_tower_is_not_known_is_served_without_images(tmp_path: Path):
    facts, [shown] = facts_of(tmp_path, config=CONFIG | {"model_type": "kosmos-9"}, preprocessor_config=PREPROCESSOR)
    assert facts.vision is None
    assert shown == "warning: the model is served without images: the vision tower of 'kosmos-9' is not known"


def test_a_model_without_the_files_of_its_processor_is_served_without_images(tmp_path: Path):
    facts, [shown] = facts_of(tmp_path, config=CONFIG)
    assert facts.vision is None
    assert "there is no preprocessor_config.json or processor_config.json in" in shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": {"longest_edge": "large"}}, "size.longest_edge: Expected `int`, got `str`"),
        ({"size": {}}, "size.longest_edge is missing"),
        ({"max_image_size": {"longest_edge": -1}}, "max_image_size.longest_edge is -1, not a number from 1"),
        ({"image_mean": [0.5]}, "image_mean: Expected `array` of length 3"),
        ({"resample": 0}, "resample 0 is not supported"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, change: dict[str, Any], words: str):
    with pytest.raises(BootError, match=words):
        facts_of(tmp_path, config=CONFIG, preprocessor_config=PREPROCESSOR | change)
