"""Towers from GGUF files, as llama.cpp's converter writes them, against those of the Hugging Face checkpoints."""

from pathlib import Path
from typing import Any

import pytest

from messages.errors import BootError
from tests.gguf_files import write_gguf
from tests.mmproj_files import write_mmproj
from tests.scheduler_proc.computing.vision import towers
from tests.vision_models import make_vision_model

FAMILIES = {
    "idefics3": 4,
    "gemma3": 4,
    "internvl": 4,
    "lfm2_vl": 4,
    "llava": 16,
    "llava_next": 17,
    "llava_onevision": 17,
}
"""Each with the number of rows of a view."""

DISTANCES = {"F32": 1e-5, "F16": 0.02, "BF16": 0.1, "Q8_0": 0.1}
"""By the form of the linears, how far encodings may be from those in float32."""


def _make(family: str, path: Path, form: str = "F32", **fields: Any) -> tuple[Path, Path]:
    """Returns a checkpoint and the same tower's file."""
    model_dir = make_vision_model(family, path / "model", vision_layers=3)
    layers = {"llava": [2], "llava_next": [2, 3]}.get(family, [])
    file = write_mmproj(family, model_dir, path / "mmproj.gguf", form, feature_layers=layers, **fields)
    return model_dir, file


@pytest.mark.parametrize(
    ("family", "form"),
    [*((family, "F32") for family in FAMILIES), *(("idefics3", form) for form in list(DISTANCES)[1:])],
)
def test_files_of_all_families_and_forms(tmp_path: Path, family: str, form: str):
    model_dir, file = _make(family, tmp_path, form)
    layout, views = towers.layout_of(FAMILIES[family]), towers.random_views((32, 32))
    expected = towers.load(family, model_dir).encode(views, layout)
    found = towers.load(family, model_dir, file).encode(views, layout)
    distance = towers.distance(found, expected)
    assert distance < DISTANCES[form]
    assert form == "F32" or distance > 0


@pytest.mark.parametrize("family", ["idefics3", "llava"])
def test_old_files_with_exchanged_linears(tmp_path: Path, family: str):
    model_dir, file = _make(family, tmp_path, is_swapped=True)
    layout, views = towers.layout_of(FAMILIES[family]), towers.random_views((32, 32))
    expected = towers.load(family, model_dir).encode(views, layout)
    assert towers.distance(towers.load(family, model_dir, file).encode(views, layout), expected) < DISTANCES["F32"]


def test_files_of_models_are_refused(tmp_path: Path):
    model_dir = make_vision_model("idefics3", tmp_path / "model")
    file = write_gguf(tmp_path / "model.gguf", {"general.architecture": "llama"})
    with pytest.raises(BootError, match=r"general\.architecture is 'llama', not clip"):
        towers.load("idefics3", model_dir, file)


def test_other_projectors_name_their_tensors(tmp_path: Path):
    model_dir, _ = _make("idefics3", tmp_path)
    _, other = _make("gemma3", tmp_path / "other")
    with pytest.raises(BootError, match=r"lacks 1 of 54 tensors: mm\.model\.fc\.weight"):
        towers.load("idefics3", model_dir, other)
