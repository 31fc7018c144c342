"""gpt-oss: its real configurations, and experts in MXFP4 as transformers reads them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu.library import load_kernels, unload_kernels
from kernels.formats.packed_blocks import PackedBlocksWeight
from kernels.operations.block_linear import unpack
from messages.errors import BootError
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading.open_weights import open_weights
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import CONTEXT, make_config
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.model.families.configs import check_sources, read
from tests.scheduler_proc.computing.model.families.gpt_oss_models import build_gpt_oss
from tests.scheduler_proc.computing.model.test_decoder import our_logits

GPT_OSS_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GPT_OSS_120B = GPT_OSS_20B | {
    "num_hidden_layers": 36,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_local_experts": 128,
}
PROMPTS = [[5, 6, 7], list(range(40)), [9], [100, 200, 300, 12, 4, 4, 4, 4]]


@pytest.fixture(autouse=True)
def no_kernels() -> None:
    """Other files of this process may have loaded some; they decide how weights are laid out."""
    unload_kernels()


def load(path: Path) -> Weights:
    hf_config = read_hf_config(path)
    family = find_family(hf_config)
    shard = Shard(family.describe(hf_config, CONTEXT))
    placement = Placement(torch.device("cpu"), torch.float32)
    return load_weights(shard, family, open_weights(path, "auto"), placement, lambda text, part: None)


@pytest.mark.parametrize(("fields", "num_experts"), [(GPT_OSS_20B, 32), (GPT_OSS_120B, 128)])
def test_the_real_models(fields: dict[str, Any], num_experts: int) -> None:
    _, model = read(fields, 131072)
    attention = model.find(AttentionDescription)[0]
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (64, 8, 64)
    assert [attention.window for attention in model.find(AttentionDescription)[:3]] == [128, None, 128]
    assert attention.has_sinks
    assert attention.rope is not None
    assert not attention.rope.has_whole_bounds
    assert attention.rope.attention_factor == pytest.approx(1.3465735902799727)
    mlp = model.layers[1].mlp
    assert isinstance(mlp, ExpertMlpDescription)
    assert (mlp.num_experts, mlp.num_chosen, mlp.size, mlp.has_bias) == (num_experts, 4, 2880, True)
    assert (mlp.activation, mlp.swiglu_alpha, mlp.swiglu_limit) == ("swiglu_oai", 1.702, 7.0)


def test_sources_fill_every_element_of_every_parameter_once() -> None:
    sizes = {"vocab_size": 100, "hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 6}
    layers = {"num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2, "layer_types": None}
    check_sources(GPT_OSS_20B | sizes | layers | {"num_local_experts": 5})


def test_mxfp4_has_the_values_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "quantized").mkdir()
    build_gpt_oss(tmp_path / "quantized", is_quantized=True).save_pretrained(tmp_path / "plain")
    expected, loaded = load(tmp_path / "plain"), load(tmp_path / "quantized")
    assert loaded.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(loaded[name].stored, weight.stored), name
    if load_kernels(lambda text, fraction: None) is None:
        pytest.skip("no C compiler")
    in_blocks = {
        name: each for name, each in load(tmp_path / "quantized").items() if isinstance(each, PackedBlocksWeight)
    }
    assert len(in_blocks) == 8
    for name, each in in_blocks.items():
        assert torch.equal(unpack(each.blocks), expected[name].stored), name


def test_tokens_of_mxfp4_are_those_of_transformers_or_nearly(tmp_path: Path) -> None:
    """Kernels of blocks round activations to 8 bits: a token's logit is the best, or nearly. Steps are captured."""
    model = build_gpt_oss(tmp_path, is_quantized=True)
    runner = load_runner(make_config(tmp_path, dtype="float32"), lambda text, fraction: None)
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    assert runner.forward_passes.can_capture
    outputs = generate(runner, PROMPTS, 8)
    assert generate(runner, PROMPTS, 8, Schedule(chunk_tokens=7, stagger=1, seed=5)) == outputs
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        with torch.inference_mode():
            logits: Any = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
        lead = logits.amax(-1) - logits[range(8), output]
        assert float((lead / logits.std(-1)).max()) < 0.05


def test_logits_of_mxfp4_without_kernels_are_those_of_transformers(tmp_path: Path) -> None:
    model: Any = build_gpt_oss(tmp_path, is_quantized=True)
    with torch.inference_mode():
        expected = torch.stack([model(torch.tensor([prompt])).logits[0, -1] for prompt in PROMPTS])
    ours = our_logits(make_config(tmp_path, dtype="float32"), PROMPTS)
    assert float((ours - expected).abs().max() / expected.std()) < 1e-4


@pytest.mark.parametrize(
    ("part", "change", "complaint"),
    [
        ("_scales", lambda scales: scales[:, :-1], r"gate_up_proj_blocks: expected \[5, 191, 2, 16\], got \[5, 192, 2"),
        ("_scales", lambda scales: torch.full_like(scales, 255), "gate_up_proj_scales: holds NaN"),
        ("_scales", lambda scales: scales.float(), "gate_up_proj_scales: expected uint8, got float32"),
        ("_scales", lambda scales: scales[0], "gate_up_proj_scales: expected 3 dimensions"),
        ("_blocks", lambda blocks: None, "lacks .*experts.gate_up_proj_blocks"),
        ("_bias", lambda bias: bias[:4], r"gate_up_proj_bias: expected \[5, 192\], got \[4, 192\]"),
        ("_bias", lambda bias: None, "lacks 10 of .*experts.0.gate_proj.bias"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, part: str, change: Any, complaint: str) -> None:
    build_gpt_oss(tmp_path, is_quantized=True)
    tensors = load_file(tmp_path / "model.safetensors")
    name = f"model.layers.2.mlp.experts.gate_up_proj{part}"
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BootError, match=complaint):
        load(tmp_path)


def test_experts_of_another_shape_are_refused(tmp_path: Path) -> None:
    build_gpt_oss(tmp_path, is_quantized=True)
    fields = (tmp_path / "config.json").read_text().replace('"intermediate_size": 96', '"intermediate_size": 64')
    (tmp_path / "config.json").write_text(fields)
    with pytest.raises(BootError, match=r"gate_up_proj: expected \[640, 64\], got \[960, 64\]"):
        load(tmp_path)
