"""Models in GGUF: their parameters are those of a checkpoint with the values of the blocks."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.arguments.block_forms import FORMS, GGUF_FORMS
from kernels.cpu.library import unload_kernels, use_library
from kernels.formats.packed_blocks import PackedBlocksWeight
from kernels.formats.registry import FORMATS
from kernels.operations.block_linear import unpack
from messages.errors import BootError
from runtime.gguf.gguf_file import read_gguf
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.loading import weights
from scheduler_proc.computing.loading.checkpoint import open_checkpoint
from scheduler_proc.computing.loading.sources import gguf_part
from scheduler_proc.computing.loading.weights import find_segments, load_weights, max_bytes
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.gguf_models import build_block_model
from tests.kernels.c_library import built_library

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_kernels() -> None:
    """Without C kernels, weights are plain values."""
    unload_kernels()


@pytest.fixture
def kernels() -> Iterator[None]:
    """With them, rows in blocks stay so."""
    use_library(built_library())
    yield
    unload_kernels()


def describe(path: Path, rank: int = 0, num_ranks: int = 1) -> Shard:
    hf_config = read_hf_config(path)
    return Shard(find_family(hf_config).describe(hf_config, 96), rank, num_ranks)


def load(path: Path, placement: Placement, rank: int = 0, num_ranks: int = 1) -> Weights:
    family, shard = find_family(read_hf_config(path)), describe(path, rank, num_ranks)
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


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("form", GGUF_FORMS)
@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        ("llama-gqa-tied", torch.float32),
        ("llama-gqa-tied", torch.bfloat16),
        ("qwen3-biases-untied", torch.bfloat16),
        ("gpt2", torch.float32),
    ],
)
def test_blocks_stay_as_they_are(
    tmp_path: Path, variant: str, form: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"n_embd": 256, "n_head": 4, "n_layer": 1} if variant == "gpt2" else {"head_dim": 64}
    model = build_block_model(tmp_path, variant, lambda name: "F32" if "position" in name else form, **sizes)
    placement = Placement(CPU, dtype)
    with caplog.at_level(logging.INFO):
        loaded = load(model.path, placement)
    assert "weights are converted" not in caplog.text
    unload_kernels()
    for name, expected in load(model.values, Placement(CPU, torch.float32)).items():
        weight = loaded[name]
        is_matrix = expected.stored.dim() == 2 and name != "position_embedding"
        assert isinstance(weight, PackedBlocksWeight) == is_matrix, name
        if isinstance(weight, PackedBlocksWeight):
            assert torch.equal(unpack(weight.blocks), expected.stored), name
            restored = FORMATS[weight.format.name].restore(weight.stored, weight.numbers)
            assert torch.equal(restored.look_up(torch.tensor([3, 1])), expected.stored[[3, 1]].to(dtype)), name


@pytest.mark.usefixtures("kernels")
def test_what_is_packed_is_no_longer_memory_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary's matrix is most of a small model: mapped from one end to the other it would double its memory."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 1 << 16}
    model = build_block_model(tmp_path, "llama-gqa-tied", lambda name: "Q8_0", **sizes)
    placement, mapped_bytes = Placement(CPU, torch.bfloat16), list[int]()
    release = gguf_part._release

    def measure_and_release(file_B: torch.Tensor, blocks: torch.Tensor) -> None:
        mapped_bytes.append(mapped_file_bytes())
        release(file_B, blocks)

    whole = load(model.path, placement)
    monkeypatch.setattr(weights, "BYTES_AT_ONCE", 1 << 20)
    monkeypatch.setattr(gguf_part, "MAX_MAPPED_BYTES", 2 << 20)
    monkeypatch.setattr(gguf_part, "_release", measure_and_release)
    before = mapped_file_bytes()
    assert_same(load(model.path, placement), whole)
    assert len(mapped_bytes) > 17, "17 MB, and small ones"
    assert max(mapped_bytes) - before < 6 << 20


def mapped_file_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssFile:")[2].split()[0]) << 10


@pytest.mark.usefixtures("kernels")
def test_parts_in_several_forms_are_one_weight(tmp_path: Path) -> None:
    forms = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "ffn_gate": "Q5_0", "ffn_up": "MXFP4"}
    model = build_block_model(
        tmp_path,
        "llama-gqa-tied",
        lambda name: next((form for part, form in forms.items() if f"{part}." in name), "F32"),
    )
    placement = Placement(CPU, torch.float32)
    shard, family = describe(model.path), find_family(read_hf_config(model.path))
    segments = find_segments(shard, family, open_checkpoint(model.path, "auto"))
    loaded = load(model.path, placement)
    assert segments is not None
    assert sum(weight.stored.nbytes for weight in loaded.values()) <= max_bytes(shard, placement, segments)
    found = {name: weight.blocks.segments for name, weight in loaded.items() if isinstance(weight, PackedBlocksWeight)}
    assert found["layers.0.qkv.weight"] == (("Q4_K", 384), ("Q6_K", 128))
    assert found["layers.0.mlp_in.weight"] == (("Q5_0", 512), ("MXFP4", 512))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_blocks_of_ranks(tmp_path: Path, num_ranks: int) -> None:
    """The vocabulary is not divisible by 3, so that a rank has filling."""
    overrides = {} if num_ranks == 2 else {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 192}
    model = build_block_model(
        tmp_path, "llama-gqa-tied", lambda name: "Q5_1", intermediate_size=768, **overrides, vocab_size=320
    )
    ranks = [load(model.path, Placement(CPU, torch.float32), rank, num_ranks) for rank in range(num_ranks)]
    unload_kernels()
    for rank, loaded in enumerate(ranks):
        for name, expected in load(model.values, Placement(CPU, torch.float32), rank, num_ranks).items():
            weight = loaded[name]
            found = unpack(weight.blocks) if isinstance(weight, PackedBlocksWeight) else weight.stored
            assert torch.equal(found, expected.stored), name


@pytest.mark.usefixtures("kernels")
def test_columns_are_divided_at_the_borders_of_blocks(tmp_path: Path) -> None:
    model = build_block_model(tmp_path, "llama-gqa-tied", lambda name: "Q4_K")
    with pytest.raises(BootError, match=r"attention_out\.weight is in Q4_K, whose blocks of 256 columns cannot be"):
        load(model.path, Placement(CPU, torch.float32), 0, 2)


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


@pytest.mark.parametrize("form", GGUF_FORMS)
@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_scale_that_is_not_a_number_is_named(tmp_path: Path, form: str, has_kernels: bool) -> None:
    model = build_block_model(tmp_path, "llama-mha", lambda name: form if "ffn_up" in name else "F32")
    file = model.path / "model.gguf"
    content = bytearray(file.read_bytes())
    offset = read_gguf(file).tensors["blk.1.ffn_up.weight"].offset + FORMS[form].num_bytes  # of the second block
    if has_kernels:
        use_library(built_library())
    for begin in FORMS[form].halves:
        damaged = content.copy()
        damaged[offset + begin : offset + begin + 2] = b"\x00\x7e"
        file.write_bytes(damaged)
        with pytest.raises(
            BootError, match=rf"^model\.layers\.1\.mlp\.up_proj\.weight: a scale of its {form} blocks is NaN"
        ):
            load(model.path, Placement(CPU, torch.float32))
    unload_kernels()


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
