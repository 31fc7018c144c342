import threading
from pathlib import Path
from typing import Literal

import pytest

from messages.config.server import ModelConfig
from runtime import prefetch as module
from runtime.prefetch import PIECE_BYTES, prefetch

SIZE = PIECE_BYTES + 100


def asked_for(monkeypatch: pytest.MonkeyPatch, model: ModelConfig, folder: Path) -> list[int]:
    """Returns the requested offsets of all files."""
    offsets: list[int] = []
    monkeypatch.setattr(module.os, "posix_fadvise", lambda file, offset, size, advice: offsets.append(offset))
    prefetch(model, folder)
    for thread in threading.enumerate():
        if thread.name == "read-ahead":
            thread.join(timeout=30)
    return offsets


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_all_of_a_checkpoint_is_requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(SIZE))
    (tmp_path / "tokenizer.json").write_bytes(bytes(SIZE))
    assert asked_for(monkeypatch, ModelConfig(), tmp_path) == [0, PIECE_BYTES]


def test_of_two_formats_only_the_one_that_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(bytes(SIZE))
    assert asked_for(monkeypatch, ModelConfig(), tmp_path) == [0, PIECE_BYTES]


@pytest.mark.parametrize(("load_format", "quantization"), [("dummy", "none"), ("auto", "int8")])
def test_what_is_not_read_is_not_requested(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    load_format: Literal["auto", "dummy"],
    quantization: Literal["none", "int8"],
) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(SIZE))
    model = ModelConfig(load_format=load_format, quantization=quantization)
    assert asked_for(monkeypatch, model, tmp_path) == []


def test_what_would_not_stay_in_memory_is_not_requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "MAX_OF_MEMORY", 0.0)
    (tmp_path / "model.safetensors").write_bytes(bytes(SIZE))
    assert asked_for(monkeypatch, ModelConfig(), tmp_path) == []


def test_a_directory_without_weights_is_left_to_the_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asked_for(monkeypatch, ModelConfig(), tmp_path) == []
    assert asked_for(monkeypatch, ModelConfig(), tmp_path / "absent") == []
