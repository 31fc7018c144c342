"""Models in GGUF: their parameters are those of a checkpoint with the values of the blocks."""

import logging
from pathlib import Path

import pytest
import torch

from kernels.arguments.block_rows import GGUF_FORMS
from kernels.cpu.library import unload_kernels
from messages.errors import BootError
from runtime.gguf.gguf_file import read_gguf
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.loading.checkpoint import open_checkpoint
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.gguf_models import build_block_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_kernels() -> None:
    """Without C kernels, weights are plain values."""
    unload_kernels()


def load(path: Path, placement: Placement, rank: int = 0, num_ranks: int = 1) -> Weights:
    hf_config = read_hf_config(path)
    family = find_family(hf_config)
    shard = Shard(family.describe(hf_config, 96), rank, num_ranks)
    return load_weights(shard, family, open_checkpoint(path, "auto"), placement, lambda text, fraction: None)


def assert_same(actual: Weights, expected: Weights) -> None:
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(actual[name].stored, weight.stored), name


@pytest.mark.parametrize("variant", ["llama-gqa-tied", "llama-biases", "qwen2-mha-untied", "qwen3-gqa-tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_and_their_order_of_rows(tmp_path: Path, variant: str, dtype: torch.dtype) -> None:
    model = build_block_model(tmp_path, variant, lambda name: "F32")
    assert_same(load(model.path, Placement(CPU, dtype)), load(model.values, Placement(CPU, dtype)))


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_a_transposed_model(tmp_path: Path, form: str) -> None:
    model = build_block_model(tmp_path, "gpt2", lambda name: form if "ffn_up" in name else "F32", n_embd=96)
    placement = Placement(CPU, torch.float32)
    assert_same(load(model.path, placement), load(model.values, placement))


@pytest.mark.parametrize("form", GGUF_FORMS)
@pytest.mark.parametrize("variant", ["llama-gqa-tied", "qwen3-biases-untied"])
def test_blocks_of_every_form(tmp_path: Path, form: str, variant: str, caplog: pytest.LogCaptureFixture) -> None:
    model = build_block_model(tmp_path, variant, lambda name: form, head_dim=64)
    placement = Placement(CPU, torch.bfloat16)
    with caplog.at_level(logging.INFO):
        assert_same(load(model.path, placement), load(model.values, placement))
    num_weights = 9 if variant == "llama-gqa-tied" else 10
    assert "weights are converted to bfloat16" in caplog.text
    assert f": {num_weights} in {form}" in caplog.text


def test_parts_of_a_weight_in_several_forms(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    forms = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "ffn_gate": "Q4_K", "ffn_up": "F16"}
    model = build_block_model(
        tmp_path, "llama-mha", lambda name: next((form for part, form in forms.items() if f"{part}." in name), "F32")
    )
    placement = Placement(CPU, torch.float32)
    with caplog.at_level(logging.INFO):
        assert_same(load(model.path, placement), load(model.values, placement))
    assert "2 in plain numbers and Q4_K, 2 in Q4_K and Q6_K" in caplog.text


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_parts_of_ranks(tmp_path: Path, num_ranks: int) -> None:
    model = build_block_model(tmp_path, "llama-gqa-tied", lambda name: "Q5_K")
    placement = Placement(CPU, torch.float32)
    for rank in range(num_ranks):
        assert_same(load(model.path, placement, rank, num_ranks), load(model.values, placement, rank, num_ranks))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_blocks_can_be_quantized_again(tmp_path: Path, quantization: str, caplog: pytest.LogCaptureFixture) -> None:
    model = build_block_model(tmp_path, "llama-gqa-tied", lambda name: "Q6_K")
    placement = Placement(CPU, torch.float32, quantization)
    with caplog.at_level(logging.INFO):
        assert_same(load(model.path, placement), load(model.values, placement))
    assert f"rounded a second time, to {quantization} (--quantization): 9 in Q6_K" in caplog.text
    ranks = [load(path, placement, 1, 2) for path in model]
    assert_same(*ranks)


def test_a_scale_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    model = build_block_model(tmp_path, "llama-mha", lambda name: "Q8_0")
    file = model.path / "model.gguf"
    content = bytearray(file.read_bytes())
    begin = read_gguf(file).tensors["blk.1.ffn_down.weight"].offset
    content[begin + 34 : begin + 36] = b"\x00\x7e"  # the scale of the second block
    file.write_bytes(content)
    with pytest.raises(BootError, match=r"model\.layers\.1\.mlp\.down_proj\.weight: a scale of its Q8_0 blocks is NaN"):
        load(model.path, Placement(CPU, torch.float32))


def test_a_type_that_is_not_supported_is_named(tmp_path: Path) -> None:
    model = build_block_model(tmp_path, "llama-mha", lambda name: "F32")
    file = model.path / "model.gguf"
    content = file.read_bytes()
    name = b"blk.1.ffn_down.weight"
    place = content.index(name) + len(name) + 4 + 2 * 8
    file.write_bytes(content[:place] + b"\x1c" + content[place + 1 :])  # F64, whose numbers are twice as long
    with pytest.raises(BootError, match=r"blk\.1\.ffn_down\.weight"):
        load(model.path, Placement(CPU, torch.float32))


def test_a_model_may_be_in_several_files(tmp_path: Path) -> None:
    model = build_block_model(tmp_path, "llama-mha", lambda name: "Q4_0", num_parts=3)
    placement = Placement(CPU, torch.float32)
    assert_same(load(model.path, placement), load(model.values, placement))
    assert [path.name for path in open_checkpoint(model.path, "auto").paths] == [
        f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)
    ]
