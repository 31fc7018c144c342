"""The launcher reads how images are prepared, and serves a model whose tower is not known without them."""

import json
from pathlib import Path
from typing import Any

import pytest

from messages.config.images import ImageConfig
from messages.config.server import ModelConfig, ModelFacts
from messages.errors import BootError, UsageError
from runtime.images.families.idefics3 import Idefics3
from runtime.images.registry import read_rule
from supervisor.model.vision import add_vision_facts
from tests.gguf_files import write_gguf

CONFIG = {
    "architectures": ["SmolVLMForConditionalGeneration"],
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
    return add_vision_facts(facts, ModelConfig(model=str(directory)), ImageConfig(mmproj=mmproj), shown), shown.texts


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


CLIP = "clip.vision."
MEANS = {f"{CLIP}image_mean": [0.25, 0.5, 0.75], f"{CLIP}image_std": [0.5, 0.5, 0.5]}
TOWERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "idefics3",
        {"image_size": 512, "patch_size": 16, "projector.scale_factor": 4, "preproc_image_size": 1024},
        {"longest_edge": 1024, "tile": 512, "tile_tokens": 64, "filter": "lanczos"},
    ),
    (
        "idefics3",
        {"image_size": 384, "patch_size": 14, "projector.scale_factor": 3},
        {"longest_edge": 1536, "tile": 384, "tile_tokens": 81},
    ),
    (
        "qwen2.5vl_merger",
        {"image_size": 560, "patch_size": 14},
        {"cell": 28, "min_pixels": 3136, "max_pixels": 12845056, "num_deepstack": 0, "filter": "bicubic"},
    ),
    (
        "qwen3vl_merger",
        {"image_size": 768, "patch_size": 16, "spatial_merge_size": 2, "image_min_pixels": 1024}
        | {"is_deepstack_layers": [False, True, True, False]},
        {"cell": 32, "min_pixels": 1024, "max_pixels": 16777216, "num_deepstack": 2},
    ),
    ("gemma3", {"image_size": 896, "patch_size": 14}, {"size": (896, 896), "num_tokens": 256, "filter": "bilinear"}),
    ("gemma4v", {"image_size": 768, "patch_size": 16}, {"cell": 48, "max_tokens": 280, "is_two_way": True}),
    ("pixtral", {"image_size": 1540, "patch_size": 14, "spatial_merge_size": 2}, {"cell": 28, "longest_edge": 1540}),
    ("internvl", {"image_size": 448, "patch_size": 14}, {"tile": (448, 448), "tile_tokens": 256, "max_tiles": 12}),
    ("lfm2", {"image_size": 256, "patch_size": 16}, {"cell": 32, "max_tokens": 256, "tile": 512}),
    ("mlp", {"image_size": 336, "patch_size": 14}, {"view": (336, 336), "shortest_edge": 336, "num_tokens": 576}),
    (
        "mlp",
        {"image_size": 384, "patch_size": 14, "image_grid_pinpoints": [384, 768, 768, 384]},
        {"canvases": ((768, 384), (384, 768)), "tile": 384, "tile_cells": 27, "tile_tokens": 729, "max_tiles": 0},
    ),
]


def write_mmproj(path: Path, kind: str, numbers: dict[str, Any], width: int = 64) -> Path:
    fields = {f"{CLIP}{name}": value for name, value in numbers.items()}
    own = {"general.architecture": "clip", "clip.projector_type": kind, f"{CLIP}projection_dim": width}
    return write_gguf(path, own | MEANS | fields)


def write_gguf_model(directory: Path, cache: Path) -> Path:
    """Writes a model's file, and the directory that the launcher makes of it."""
    directory.mkdir()
    cache.mkdir()
    file = write_gguf(directory / "model.gguf", {"general.architecture": "llama"})
    (cache / "model.gguf").symlink_to(file)
    (cache / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    return file


@pytest.mark.parametrize(("kind", "numbers", "expected"), TOWERS)
def test_a_rule_is_read_from_a_gguf_file(tmp_path: Path, kind: str, numbers: dict[str, Any], expected: dict[str, Any]):
    file = write_gguf_model(tmp_path / "models", tmp_path / "cache")
    tower = write_mmproj(file.with_name("mmproj-model-f16.gguf"), kind, numbers)
    facts, shown = facts_of(tmp_path / "cache")
    assert shown == []
    assert facts.vision is not None
    assert facts.vision.mmproj == str(tower)
    rule = read_rule(facts.vision)
    assert {name: getattr(rule, name) for name in expected} == expected
    assert (rule.image_mean, rule.hidden_size) == ((0.0,) * 3 if kind == "gemma4v" else (0.25, 0.5, 0.75), 64)
    assert facts.vision.row_width == 64 * (1 + expected.get("num_deepstack", 0))


def test_the_tower_in_sixteen_bits_is_chosen(tmp_path: Path):
    file = write_gguf_model(tmp_path / "models", tmp_path / "cache")
    for name in ("mmproj-Q8_0.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-F16.txt"):
        write_mmproj(file.with_name(name), *TOWERS[0][:2])
    facts, _ = facts_of(tmp_path / "cache")
    assert facts.vision is not None
    assert facts.vision.mmproj.endswith("mmproj-F16.gguf")
    explicit, _ = facts_of(tmp_path / "cache", str(file.with_name("mmproj-Q8_0.gguf")))
    assert explicit.vision is not None
    assert explicit.vision.mmproj.endswith("mmproj-Q8_0.gguf")
    assert facts_of(tmp_path / "cache", "none")[0].vision is None


def test_a_tower_is_found_next_to_a_model_in_the_hub_cache(tmp_path: Path):
    blobs, snapshot, cache = tmp_path / "repo/blobs", tmp_path / "repo/snapshots/abc", tmp_path / "cache"
    snapshot.mkdir(parents=True)
    file = write_gguf_model(blobs, cache)
    (snapshot / "Model-Q4.gguf").symlink_to(file)
    (snapshot / "mmproj-F16.gguf").symlink_to(write_mmproj(blobs / "123", *TOWERS[0][:2]))
    facts, _ = facts_of(cache)
    assert facts.vision is not None
    assert facts.vision.mmproj == str(snapshot / "mmproj-F16.gguf")


@pytest.mark.parametrize(
    ("kind", "width", "words"),
    [
        ("adapter", 64, "of type 'adapter' is not known"),
        ("gemma3", 128, "is the tower of another model"),
    ],
)
def test_a_model_next_to_a_tower_that_cannot_be_used_is_served_without(
    tmp_path: Path, kind: str, width: int, words: str
):
    file = write_gguf_model(tmp_path / "models", tmp_path / "cache")
    write_mmproj(file.with_name("mmproj.gguf"), kind, {"image_size": 896, "patch_size": 14}, width)
    facts, [shown] = facts_of(tmp_path / "cache")
    assert facts.vision is None
    assert words in shown


def test_a_tower_that_is_asked_for_must_be_there(tmp_path: Path):
    write_gguf_model(tmp_path / "models", tmp_path / "cache")
    with pytest.raises(UsageError, match="is not a file in GGUF"):
        facts_of(tmp_path / "cache", str(tmp_path / "other.gguf"))
    other = write_mmproj(tmp_path / "other.gguf", *TOWERS[0][:2])
    (tmp_path / "plain").mkdir()
    with pytest.raises(UsageError, match="is for models in GGUF"):
        facts_of(tmp_path / "plain", str(other), config=CONFIG)


def test_a_damaged_tower_is_an_error(tmp_path: Path):
    file = write_gguf_model(tmp_path / "models", tmp_path / "cache")
    write_mmproj(file.with_name("mmproj.gguf"), "gemma3", {"image_size": 896})
    with pytest.raises(BootError, match=r"mmproj.gguf: how images .* metadata clip.vision.patch_size is None"):
        facts_of(tmp_path / "cache")
    file.with_name("mmproj.gguf").write_bytes(b"GGUF")
    with pytest.raises(BootError, match=r"mmproj.gguf"):
        facts_of(tmp_path / "cache")
