"""A stage loads its layers where it has only the parts of the weight files that it reads."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from kernels.cpu.library import unload_kernels
from messages.errors import BootError
from runtime import stage_files
from runtime.model_files import is_weight_file
from runtime.stage_files import ALL_LAYERS, LAST_END, spans_of_layers
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.loading.checkpoint import open_checkpoint
from scheduler_proc.computing.loading.tied_head import has_own_head
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import build_checkpoint
from tests.gguf_models import build_block_model

PLACEMENT = Placement(torch.device("cpu"), torch.float32)


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain weights, and ends that are smaller than the small files."""
    unload_kernels()
    monkeypatch.setattr(stage_files, "END_BYTES", 64)


def stages_of(path: Path) -> list[range]:
    hf_config = read_hf_config(path)
    num_layers = len(find_family(hf_config).describe(hf_config, 96).layers)
    return [range(1), range(1, 2), range(2, num_layers)]


def load(path: Path, layers: range) -> Weights:
    hf_config = read_hf_config(path)
    family, checkpoint = find_family(hf_config), open_checkpoint(path, "auto")
    model = family.describe(hf_config, 96)
    assert not has_own_head(model, family, checkpoint)
    return load_weights(Shard(model, layers=layers), family, checkpoint, PLACEMENT, lambda text, fraction: None)


def assert_same(actual: Weights, expected: Weights) -> None:
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(actual[name].stored, weight.stored), name


def asked(layers: range, number: int) -> range:
    return range(layers.start, LAST_END) if number == 2 else layers


def check_spans(path: Path, copy: Path) -> None:
    """Loads each stage from a copy in which all other bytes are damaged."""
    files = sorted(file for file in path.iterdir() if is_weight_file(file.name))
    for number, layers in enumerate(stages_of(path)):
        shutil.copytree(path, copy)
        num_read, num_bytes = 0, 0
        for file, spans in zip(files, spans_of_layers(files, asked(layers, number)), strict=True):
            content = file.read_bytes()
            damaged = bytearray(b"\xff" * len(content))
            for begin, end in spans:
                damaged[max(0, begin) : end] = content[max(0, begin) : end]
            (copy / file.name).write_bytes(damaged)
            num_read += len(damaged) - damaged.count(b"\xff" * 64) * 64
            num_bytes += len(content)
        assert num_read < num_bytes, "something is left out"
        assert_same(load(copy, layers), load(path, layers))
        shutil.rmtree(copy)


@pytest.mark.parametrize("variant", ["gpt2", "llama-gqa-tied", "gemma4-shared-kv", "lfm2", "nemotron-h", "mamba2"])
def test_the_parts_of_one_file_suffice(tmp_path: Path, variant: str) -> None:
    build_checkpoint(tmp_path / "whole", variant)
    check_spans(tmp_path / "whole", tmp_path / "part")


@pytest.mark.parametrize("num_parts", [1, 3])
def test_the_parts_of_gguf_files_suffice(tmp_path: Path, num_parts: int) -> None:
    model = build_block_model(tmp_path, "llama-mha", lambda name: "Q8_0", num_parts, num_hidden_layers=3)
    check_spans(model.path, tmp_path / "part")


def test_a_directory_with_only_the_shards_of_a_stage_loads_that_stage(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    build_checkpoint(whole, "llama-gqa-tied", "sharded")
    index = json.loads((whole / "model.safetensors.index.json").read_text())["weight_map"]
    names = sorted(set(index.values()))
    for number, layers in enumerate(stages_of(whole)):
        spans = spans_of_layers([whole / name for name in names], asked(layers, number))
        shutil.copytree(whole, part)
        # A file with no more than the header, its begin and its end has nothing of the stage.
        others = [name for name, of_file in zip(names, spans, strict=True) if len(of_file) == 3]
        assert others
        for name in others:
            (part / name).unlink()
        assert_same(load(part, layers), load(whole, layers))
        with pytest.raises(BootError, match=r"is not here, but the index of the weights names it"):
            load(part, range(stages_of(whole)[-1].stop))
        shutil.rmtree(part)


def test_without_layers_in_the_names_files_are_read_whole(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2", "pt")
    file = tmp_path / "pytorch_model.bin"
    for layers in (range(1, 2), ALL_LAYERS):
        assert spans_of_layers([file], layers) == [[(0, file.stat().st_size)]]
