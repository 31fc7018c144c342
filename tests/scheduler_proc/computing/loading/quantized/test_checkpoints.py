"""Quantized checkpoints: loaded as their values are, and refused where they do not fit their configuration."""

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu.library import unload_kernels, use_library
from kernels.formats.packed_blocks import PackedBlocksWeight
from kernels.operations.block_linear import unpack
from messages.errors import BootError
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import module_patterns
from scheduler_proc.computing.loading.open_weights import open_weights
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import CONTEXT, EVERY_ARCHITECTURE, VOCAB_SIZE, make_config
from tests.kernels.c_library import built_library
from tests.scheduler_proc.computing.drive import generate
from tests.scheduler_proc.computing.loading.quantized.quantized_models import METHODS, build_quantized

CPU = Placement(torch.device("cpu"), torch.float32)
Q_PROJ = "model.layers.1.self_attn.q_proj"
UP_PROJ = "model.layers.1.mlp.up_proj"
DOWN_PROJ = "model.layers.0.mlp.down_proj"
ARCHITECTURES = [name for name in EVERY_ARCHITECTURE if name not in ("GPT2LMHeadModel", "GptOssForCausalLM")]
WHOLE_GROUPS = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "shared_intermediate_size": 128,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "head_dim": 32,
    "mamba_d_ssm": 128,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_hidden_layers": 3,
}
"""The inputs of each linear are whole groups of each method."""
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "Gemma4ForCausalLM": {"num_hidden_layers": 7},
    "GraniteMoeForCausalLM": {"shared_intermediate_size": None},
    "Lfm2ForCausalLM": {"moe_intermediate_size": None},
}


@pytest.fixture(autouse=True)
def no_kernels() -> None:
    """Other files of this process may have loaded some; they decide how weights are laid out."""
    unload_kernels()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """For a quantized checkpoint and for its values."""
    quantized, plain = tmp_path / "quantized", tmp_path / "plain"
    quantized.mkdir()
    plain.mkdir()
    return quantized, plain


def load(path: Path, placement: Placement = CPU) -> Weights:
    hf_config = read_hf_config(path)
    family = find_family(hf_config)
    shard = Shard(family.describe(hf_config, CONTEXT))
    return load_weights(shard, family, open_weights(path, "auto"), placement, lambda text, fraction: None)


def edit_config(path: Path, **changes: Any) -> None:
    """Sets fields of `quantization_config`, or removes those that are None."""
    fields = json.loads((path / "config.json").read_text())
    changed = fields["quantization_config"] | changes
    fields["quantization_config"] = {name: value for name, value in changed.items() if value is not None}
    (path / "config.json").write_text(json.dumps(fields))


def edit_tensor(path: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replaces or (None) removes a tensor."""
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_the_values(folders: tuple[Path, Path], method: str, caplog: pytest.LogCaptureFixture) -> None:
    quantized, plain = folders
    build_quantized(quantized, plain, method)
    with caplog.at_level(logging.INFO):
        loaded, expected = load(quantized), load(plain)
    assert loaded.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(loaded[name].stored, weight.stored), name
    assert f"{method}: 1{5 if method == 'awq' else 4} quantized weights are read" in caplog.text
    assert "tensors not used" not in caplog.text


@pytest.mark.parametrize(("architecture", "method"), list(zip(ARCHITECTURES, itertools.cycle(["awq", "gptq", "fp8"]))))
def test_weights_of_every_architecture_are_the_values(
    folders: tuple[Path, Path], architecture: str, method: str
) -> None:
    """Fused linears, experts, and heads whose rows are loaded in another order."""
    quantized, plain = folders
    sizes = WHOLE_GROUPS | OTHER_SIZES.get(architecture, {})
    build_quantized(quantized, plain, method, EVERY_ARCHITECTURE[architecture][0], sizes)
    loaded, expected = load(quantized), load(plain)
    assert loaded.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(loaded[name].stored, weight.stored), name


@pytest.mark.parametrize(("method", "dtype"), [*((method, "float32") for method in METHODS), ("fp8", "bfloat16")])
def test_the_ids_are_those_of_the_values(folders: tuple[Path, Path], method: str, dtype: str) -> None:
    """Kernels of blocks round activations to 8 bits: an id's logit is the best, or nearly."""
    quantized, plain = folders
    model = build_quantized(quantized, plain, method)
    runner = load_runner(make_config(quantized, dtype=dtype), lambda text, fraction: None)
    for prompt in ([1], list(range(VOCAB_SIZE - 40, VOCAB_SIZE))):
        (output,) = generate(runner, [prompt], 8)
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
        lead = logits.amax(-1) - logits[range(8), output]
        assert float((lead / logits.std(-1)).max()) < 0.03, f"{method}, prompt of {len(prompt)}"


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors"])
def test_kernels_of_blocks_read_the_values(folders: tuple[Path, Path], method: str) -> None:
    """They are not rounded a second time."""
    quantized, plain = folders
    build_quantized(quantized, plain, method)
    expected = load(plain)
    use_library(built_library())
    try:
        loaded = load(quantized)
    finally:
        unload_kernels()
    in_blocks = {name: weight for name, weight in loaded.items() if isinstance(weight, PackedBlocksWeight)}
    assert {"awq": 9, "gptq": 2, "compressed-tensors": 4}[method] == len(in_blocks)
    for name, weight in in_blocks.items():
        assert torch.equal(unpack(weight.blocks), expected[name].stored), name


@pytest.mark.parametrize("method", METHODS)
def test_shards_may_divide_a_linear(folders: tuple[Path, Path], method: str) -> None:
    quantized, plain = folders
    build_quantized(quantized, plain, method)
    expected = load(quantized)
    tensors = load_file(quantized / "model.safetensors")
    (quantized / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, quantized / file)
    index = {name: file for file, held in shards.items() for name in held}
    (quantized / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    loaded = load(quantized)
    for name, weight in expected.items():
        assert torch.equal(loaded[name].stored, weight.stored), name


def test_quantization_rounds_the_values_again(folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    quantized, plain = folders
    build_quantized(quantized, plain, "awq")
    int8 = Placement(CPU.device, torch.float32, "int8")
    with caplog.at_level(logging.INFO):
        loaded = load(quantized, int8)
    assert "weights are rounded a second time, to int8 (--quantization)" in caplog.text
    for name, weight in load(plain, int8).items():
        assert torch.equal(loaded[name].stored, weight.stored), name


def test_random_weights_are_not_quantized(folders: tuple[Path, Path]) -> None:
    quantized, plain = folders
    build_quantized(quantized, plain, "gptq")
    (quantized / "model.safetensors").unlink()
    runner = load_runner(make_config(quantized, load_format="dummy"), lambda text, fraction: None)
    assert len(generate(runner, [[1, 2]], 3)[0]) == 3


@pytest.mark.parametrize(
    ("method", "changes", "complaint"),
    [
        ("awq", {"quant_method": "aqlm"}, r'quant_method is "aqlm": supported is awq, bitsandbytes, '),
        ("awq", {"quant_method": "hqq"}, "otherwise serve the model's unquantized safetensors, or a GGUF file of it"),
        ("awq", {"quant_method": None}, "quantization_config is .*: of an unknown kind; serve the model's unquantized"),
        ("awq", {"quant_method": 5}, "quant_method must be a text, not 5"),
        ("awq", {"bits": 3}, "bits is 3: supported is 4"),
        ("awq", {"bits": None}, "bits is missing"),
        ("awq", {"bits": True}, "bits is true: supported is 4"),
        ("awq", {"version": "marlin"}, 'version is "marlin": supported is gemm'),
        ("awq", {"group_size": 48}, r"group_size is 48, which does not divide the 128 inputs of lm_head"),
        ("awq", {"group_size": 128}, r"\.scales: expected \[1, \d+\], got \[2, \d+\]"),
        ("awq", {"group_size": 0}, "group_size must be a positive integer, not 0"),
        ("gptq", {"bits": 5}, "bits is 5: supported is 2, 3, 4, 8"),
        ("gptq", {"bits": 8}, r"model\.layers\.0\.mlp\.gate_proj\."),
        ("gptq", {"checkpoint_format": "marlin"}, 'checkpoint_format is "marlin": supported is gptq, gptq_v2'),
        ("gptq", {"dynamic": {"+:(": {"bits": 8}}}, r"dynamic is \[\"\(\"\]: '\(': it is not a regular expression"),
        ("gptq", {"dynamic": {"(.+)+!": {}}}, r"'\(\.\+\)\+!': .* needs more than 1 s of CPU time"),
        ("gptq", {"dynamic": {"x{65000}{65000}{65000}": {}}}, r"it is not a regular expression|more than"),
        ("gptq", {"dynamic": None}, r"model\.layers\.0\.mlp\.down_proj\.scales: expected"),
        ("compressed-tensors", {"config_groups": None}, "config_groups is null"),
        ("compressed-tensors", {"format": "marlin-24"}, 'format is "marlin-24": supported is pack-quantized'),
        ("compressed-tensors", {"config_groups": {}}, r"config_groups has no targets for model\.layers\.0\.mlp\."),
        (
            "compressed-tensors",
            {"config_groups": {"group_0": {"targets": ["re:("]}}},
            r"targets is \[\"\(\"\]: '\(': it is not a regular expression",
        ),
        ("compressed-tensors", {"config_groups": {"0": {"targets": ["re:(.+)+!"]}}}, r"'\(\.\+\)\+!': .* 1 s of CPU"),
        (
            "compressed-tensors",
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            'sparsity_config: format is "sparse-24-bitmask": supported is dense',
        ),
        ("compressed-tensors", {"transform_config": {"config_groups": {"u": {}}}}, "transforms .* are not supported"),
        ("fp8", {"weight_block_size": [64]}, "weight_block_size must be two integers"),
        ("fp8", {"weight_block_size": [64, 64]}, r"\.weight_scale_inv: expected \[\d, \d\], got \[\d, \d\]"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    changes: dict[str, Any],
    complaint: str,
) -> None:
    monkeypatch.setattr(module_patterns, "MAX_CPU_S", 1)
    quantized, plain = folders
    build_quantized(quantized, plain, method)
    edit_config(quantized, **changes)
    with pytest.raises(BootError, match=complaint):
        load(quantized)


def _nan_like(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    tensor = torch.ones(shape, dtype=dtype)
    tensor.view(-1)[-1] = torch.nan
    return tensor


@pytest.mark.parametrize(
    ("method", "name", "tensor", "complaint"),
    [
        ("awq", f"{Q_PROJ}.scales", None, "the checkpoint lacks {}, which its quantization_config implies"),
        ("awq", f"{Q_PROJ}.qzeros", None, "the checkpoint lacks {}, which its quantization_config implies"),
        ("awq", f"{Q_PROJ}.qweight", None, "the checkpoint lacks {}, which its quantization_config implies"),
        ("awq", f"{Q_PROJ}.scales", torch.ones(3, 128).half(), r"{}: expected \[2, 128\], got \[3, 128\]"),
        ("awq", f"{Q_PROJ}.scales", _nan_like(2, 128), "{}: holds NaN or an infinity"),
        ("awq", f"{Q_PROJ}.scales", torch.full((2, 128), torch.inf), "{}: holds NaN or an infinity"),
        ("awq", f"{Q_PROJ}.qweight", torch.ones(128, 16), "{}: expected int32, got float32"),
        ("awq", f"{Q_PROJ}.qweight", torch.ones(5, dtype=torch.int32), r"{}: expected a matrix, got \[5\]"),
        ("awq", f"{Q_PROJ}.qzeros", torch.ones(2, 15, dtype=torch.int32), r"{}: expected \[2, 16\], got \[2, 15\]"),
        ("gptq", f"{Q_PROJ}.qzeros", None, "the checkpoint lacks {}"),
        ("gptq", f"{Q_PROJ}.g_idx", None, "the checkpoint lacks {}"),
        ("gptq", f"{Q_PROJ}.g_idx", torch.full((128,), 4).int(), "{}: expected groups 0 to 3, got others"),
        ("gptq", f"{Q_PROJ}.g_idx", torch.full((128,), -1).int(), "{}: expected groups 0 to 3, got others"),
        ("compressed-tensors", f"{UP_PROJ}.weight_packed", None, "the checkpoint lacks {}"),
        ("compressed-tensors", f"{UP_PROJ}.weight_zero_point", None, "the checkpoint lacks {}"),
        (
            "compressed-tensors",
            f"{UP_PROJ}.weight_shape",
            torch.tensor([2**40, 128]),
            "up_proj.weight_packed: expected",
        ),
        ("compressed-tensors", f"{UP_PROJ}.weight_shape", torch.tensor([256, -128]), "up_proj.weight_packed: expected"),
        (
            "compressed-tensors",
            f"{Q_PROJ}.weight_scale",
            None,
            "q_proj.weight is float8_e4m3fn, and the checkpoint lacks",
        ),
        ("compressed-tensors", f"{DOWN_PROJ}.weight_scale", torch.ones(128, 2), r"{}: expected \[128, 1\]"),
        ("fp8", f"{Q_PROJ}.weight_scale_inv", None, "weight is float8_e4m3fn, and the checkpoint lacks its scales"),
        ("fp8", f"{Q_PROJ}.weight_scale_inv", _nan_like(2, 2, dtype=torch.float32), "{}: holds NaN"),
        ("fp8", f"{Q_PROJ}.weight", torch.full((128, 128), torch.nan).to(torch.float8_e4m3fn), "{}: holds NaN"),
        ("modelopt", f"{Q_PROJ}.weight_scale_2", None, r"q_proj.weight: expected float8_e4m3fn, got uint8"),
        ("modelopt", f"{Q_PROJ}.weight_scale", None, "the checkpoint lacks {}"),
        ("bitsandbytes", f"{UP_PROJ}.weight.absmax", None, "the checkpoint lacks {}"),
        (
            "bitsandbytes",
            f"{UP_PROJ}.weight.quant_state.bitsandbytes__nf4",
            torch.tensor(list(b"[" * 9999), dtype=torch.uint8),
            "{}: is not a JSON object",
        ),
        (
            "bitsandbytes",
            f"{UP_PROJ}.weight.quant_state.bitsandbytes__nf4",
            torch.tensor(list(b'{"shape": [100000000, 2], "blocksize": 64}'), dtype=torch.uint8),
            "quant_state: shape must be two integers from 1 to",
        ),
        ("bitsandbytes", f"{Q_PROJ}.SCB", torch.ones(5), r"{}: expected \[128\], got \[5\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    folders: tuple[Path, Path], method: str, name: str, tensor: torch.Tensor | None, complaint: str
) -> None:
    quantized, plain = folders
    build_quantized(quantized, plain, method)
    edit_tensor(quantized, name, tensor)
    with pytest.raises(BootError, match=complaint.replace("{}", name.replace(".", r"\."))):
        load(quantized)


@pytest.mark.parametrize(
    ("method", "file", "renamed"),
    [
        ("awq", "quant_config.json", {"bits": "w_bit", "group_size": "q_group_size"}),
        ("gptq", "quantize_config.json", {}),
    ],
)
def test_the_files_and_names_of_older_checkpoints_are_read(
    folders: tuple[Path, Path], method: str, file: str, renamed: dict[str, str]
) -> None:
    quantized, plain = folders
    build_quantized(quantized, plain, method)
    expected = load(quantized)
    fields = json.loads((quantized / "config.json").read_text())
    settings = fields.pop("quantization_config")
    (quantized / "config.json").write_text(json.dumps(fields))
    (quantized / file).write_text(json.dumps({renamed.get(name, name): value for name, value in settings.items()}))
    assert load(quantized).keys() == expected.keys()
    (quantized / file).unlink()
    with pytest.raises(BootError, match=r"quantized weights, but config\.json has no"):
        load(quantized)
    (quantized / "config.json").write_text(json.dumps(fields | {"quantization": {"group_size": 64, "bits": 4}}))
    with pytest.raises(BootError, match="a checkpoint of MLX, which only MLX reads; serve the model's unquantized"):
        load(quantized)
