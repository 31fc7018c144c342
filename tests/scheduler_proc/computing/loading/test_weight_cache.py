"""Quantized weights on disk: the same as without, made anew when they do not fit, and never in the way."""

import logging
import os
from pathlib import Path

import pytest
import torch

from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.loading import weight_cache
from scheduler_proc.computing.loading.checkpoint import open_checkpoint
from scheduler_proc.computing.loading.weight_cache import load_through_cache
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import VOCAB_SIZE, build_checkpoint

INT4 = Placement(torch.device("cpu"), torch.bfloat16, "int4")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and no checkpoint too small for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(weight_cache, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "sluice"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    build_checkpoint(tmp_path / "model", "gpt2")
    return tmp_path / "model"


def load(path: Path, placement: Placement = INT4, is_requested: bool = True) -> tuple[Weights, set[str]]:
    """Returns the weights and the phases that were reported."""
    hf_config = read_hf_config(path)
    family = find_family(hf_config)
    config, checkpoint = family.describe(hf_config, 96), open_checkpoint(path, "auto")
    reports: set[str] = set()
    shard = Shard(config)
    weights = load_through_cache(shard, family, checkpoint, placement, lambda text, _: reports.add(text), is_requested)
    return weights, reports


def test_each_rank_has_a_file_of_its_own(cache: Path, model_dir: Path) -> None:
    hf_config = read_hf_config(model_dir)
    family, checkpoint = find_family(hf_config), open_checkpoint(model_dir, "auto")
    shards = [Shard(family.describe(hf_config, 96), rank, 3) for rank in range(3)]
    made, read = (
        [load_through_cache(shard, family, checkpoint, INT4, lambda text, _: None, True) for shard in shards]
        for _ in range(2)
    )
    assert len(list(cache.glob("weights-*.safetensors"))) == 3
    for before, after in zip(made, read, strict=True):
        assert_same(after, before)
    assert made[0]["head"].numbers[-1] == len(made[0]["embedding"].stored) < VOCAB_SIZE


def assert_same(actual: Weights, expected: Weights) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert (actual[name].format, actual[name].numbers) == (value.format, value.numbers), name
        assert torch.equal(actual[name].stored, value.stored), name


MADE, READ = "loading weights", "reading the quantized weights"


def test_the_second_start_reads_what_the_first_left(model_dir: Path, cache: Path) -> None:
    expected, reports = load(model_dir, is_requested=False)
    assert reports == {MADE}
    assert not cache.exists()
    made, reports = load(model_dir)
    assert MADE in reports
    read, reports = load(model_dir)
    assert reports == {READ}
    assert len(list(cache.iterdir())) == 1
    assert_same(made, expected)
    assert_same(read, expected)
    assert read["head"].format.name == "packed blocks"


def test_each_format_has_its_file(model_dir: Path, cache: Path) -> None:
    int8 = Placement(INT4.device, torch.bfloat16, "int8")
    for placement in (INT4, int8, Placement(INT4.device, torch.float32, "int8")):
        assert MADE in load(model_dir, placement)[1]
    assert len(list(cache.iterdir())) == 3
    assert load(model_dir, int8)[0]["head"].format.name == "packed blocks"
    assert load(model_dir, Placement(INT4.device, torch.bfloat16))[1] == {MADE}


def test_a_checkpoint_that_has_changed_is_loaded_anew(
    model_dir: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(model_dir)
    file = model_dir / "model.safetensors"
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1))
    with caplog.at_level(logging.INFO):
        assert MADE in load(model_dir)[1]
    assert "another state of the checkpoint" in caplog.text
    assert load(model_dir)[1] == {READ}
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "emptied", "garbled", "directory"])
def test_a_damaged_file_is_made_anew(
    model_dir: Path, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = load(model_dir)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    if damage == "directory":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes({"cut": whole[:-100], "emptied": b"", "garbled": b"\xff" * len(whole)}[damage])
    with caplog.at_level(logging.WARNING):
        weights, reports = load(model_dir)
    assert MADE in reports
    assert "made anew" in caplog.text
    assert_same(weights, expected)
    assert load(model_dir)[1] == {MADE if damage == "directory" else READ} | (
        {"keeping the quantized weights"} if damage == "directory" else set()
    )


def test_a_place_that_cannot_be_written_only_warns(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert MADE in load(model_dir)[1]
    assert "cannot be written" in caplog.text


def test_a_full_disk_only_warns_and_leaves_nothing(
    model_dir: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weight_cache, "save_file", fill)
    with caplog.at_level(logging.WARNING):
        assert MADE in load(model_dir)[1]
    assert "No space left on device" in caplog.text
    assert list(cache.iterdir()) == []


def test_what_a_killed_process_left_is_removed(model_dir: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    old, young = cache / "weights-a.1.part", cache / "weights-a.2.part"
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    load(model_dir)
    assert not old.exists()
    assert young.exists()


def test_a_small_checkpoint_has_none(model_dir: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "LEAST_BYTES", 64 << 20)
    assert load(model_dir)[1] == {MADE}
    assert not cache.exists()
