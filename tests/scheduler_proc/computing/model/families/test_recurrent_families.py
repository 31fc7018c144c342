"""Families with Mamba blocks and short convolutions against transformers, and what is refused."""

from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from messages.errors import BootError
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.mamba_description import MambaDescription
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.model.short_conv_description import ShortConvDescription
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.model.families.configs import LLAMA, check_sources, read
from tests.scheduler_proc.computing.model.test_decoder import our_logits, their_logits

PROMPTS = [[5, 6, 7], list(range(40)), [9], [100, 200, 300, 12, 4, 4, 4, 4]]
VARIANTS = ["granite4-h-experts", "lfm2", "lfm2moe", "mamba2", "nemotron-h-experts", "falcon-h1", "falcon-h1-norm"]
SIZES = {name: value for name, value in LLAMA.items() if name != "architectures"}
GRANITE = SIZES | {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 6,
    "num_local_experts": 0,
    "shared_intermediate_size": 20,
}
FALCON = SIZES | {"architectures": ["FalconH1ForCausalLM"], "mamba_n_heads": 6, "mamba_d_ssm": 36}
LFM2 = SIZES | {"architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention"]}
LFM2_MOE = LFM2 | {"architectures": ["Lfm2MoeForCausalLM"], "moe_intermediate_size": 12, "num_dense_layers": 1}
MAMBA2 = {"architectures": ["Mamba2ForCausalLM"], "vocab_size": 100, "hidden_size": 24, "num_hidden_layers": 2}
MAMBA2 |= {"num_heads": 6, "head_dim": 8, "n_groups": 2, "state_size": 4}
NEMOTRON = SIZES | {"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M*-E", "head_dim": 8}
NEMOTRON |= {"mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 4}
NEMOTRON |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
NEMOTRON |= {"moe_shared_expert_intermediate_size": 20}


@pytest.fixture(scope="module", params=VARIANTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("recurrent")
    return build_checkpoint(path, request.param, intermediate_size=96, shared_intermediate_size=96), path


def test_logits_are_those_of_transformers(model: tuple[Any, Path]) -> None:
    theirs, path = model
    expected = their_logits(theirs, PROMPTS, "float32")
    ours = our_logits(make_config(path), PROMPTS)
    assert float((ours - expected).abs().max() / expected.std()) < 1e-4


@pytest.mark.parametrize("variant", ["nemotron-h-experts", "lfm2moe"])
def test_names_and_fused_experts_as_transformers_can_save_them(tmp_path: Path, variant: str) -> None:
    for folder in ("published", "own"):
        (tmp_path / folder).mkdir()
    theirs = build_checkpoint(tmp_path / "published", variant)
    theirs.save_pretrained(tmp_path / "own", save_original_format=False)
    names = load_file(tmp_path / "own" / "model.safetensors").keys()
    assert any(name.endswith("experts.down_proj") for name in names)
    assert not any("experts.0." in name or name.startswith("backbone.") for name in names)
    published, own = (our_logits(make_config(tmp_path / folder), PROMPTS) for folder in ("published", "own"))
    assert torch.equal(published, own)


def test_tokens_are_those_of_transformers_in_any_schedule(model: tuple[Any, Path]) -> None:
    """Chunks, decode rows and both; decode steps are captured."""
    theirs, path = model
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected: list[list[int]] = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
        expected.append(output[0, len(prompt) :].tolist())
    runner = load_runner(make_config(path), lambda text, fraction: None)
    for schedule in (Schedule(), Schedule(chunk_tokens=7, stagger=1, seed=5)):
        assert generate(runner, PROMPTS, 12, schedule) == expected
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    assert runner.forward_passes.can_capture


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"dtype": "bfloat16"}])
def test_requests_are_those_of_each_alone(model: tuple[Any, Path], options: dict[str, Any]) -> None:
    """A token's states are the same bits in any batch."""
    runner = load_runner(make_config(model[1], **options), lambda text, fraction: None)
    prompts = [prompt[: 2 + index] for index in range(3) for prompt in PROMPTS if len(prompt) > 1]
    together = generate(runner, prompts, 8)
    assert [generate(runner, [prompt], 8)[0] for prompt in prompts] == together


@pytest.mark.parametrize(
    "fields",
    [
        *(GRANITE, GRANITE | {"num_local_experts": 3}, FALCON, FALCON | {"mamba_rms_norm": True}, LFM2, LFM2_MOE),
        *(LFM2 | {"conv_bias": True}, MAMBA2, MAMBA2 | {"use_bias": True, "use_conv_bias": False}, NEMOTRON),
        NEMOTRON | {"mlp_bias": True, "layers_block_type": ["mlp", "linear_attention", "full_attention"]},
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    check_sources(fields)


def test_layers_have_what_their_kind_needs_alone() -> None:
    layers = read(NEMOTRON)[1].layers
    assert [any(mixer.state for mixer in layer.mixers) for layer in layers] == [True, False, False, False]
    assert [any(mixer.cache for mixer in layer.mixers) for layer in layers] == [False, True, False, False]
    assert [layer.mlp is not None for layer in layers] == [False, False, True, True]
    assert not any(mixer.cache for mixer in read(MAMBA2)[1].mixers)
    for layer in read(FALCON)[1].layers:
        assert [type(mixer) for mixer in layer.mixers] == [AttentionDescription, MambaDescription]
        assert layer.mlp is not None
    named = read(NEMOTRON | {"layers_block_type": ["mamba", "attention", "mlp", "moe"]})[1]
    assert named == read(NEMOTRON)[1]


def test_sizes_of_states() -> None:
    (mamba,) = read(MAMBA2 | {"num_hidden_layers": 1})[1].mixers
    assert [(part.shape, part.number) for part in mamba.state] == [((3, 64), "activation"), ((6, 8, 4), "float32")]
    conv = read(LFM2 | {"conv_L_cache": 4})[1].find(ShortConvDescription)[0]
    assert [(part.shape, part.number) for part in conv.state] == [((3, 24), "activation")]


def test_inner_values_of_an_mlp_of_lfm2() -> None:
    """They are those of LFM2 350M to 2.6B, as their files in GGUF have them."""
    sizes = {6656: 4608, 10240: 6912, 12288: 8192, 16128: 10752}
    found = {size: read(LFM2 | {"intermediate_size": size})[1].layers[0].mlp for size in sizes}
    assert {size: mlp.room_sizes(24)["gated"] for size, mlp in found.items() if mlp} == sizes
    by_other_name = read(LFM2 | {"block_ff_dim": 6656, "block_auto_adjust_ff_dim": False})[1].layers[0].mlp
    assert by_other_name is not None
    assert by_other_name.room_sizes(24)["gated"] == 6656


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        (None, (0.0, inf)),
        ([0.0, inf], (0.0, inf)),
        ([0.0, {"__float__": "Infinity"}], (0.0, inf)),
        ([0.001, 0.1], (0.001, 0.1)),
    ],
)
def test_limits_of_time_steps(written: object, limits: tuple[float, float]) -> None:
    mamba = read(MAMBA2 | {"time_step_limit": written})[1].layers[0].mixers[0]
    assert isinstance(mamba, MambaDescription)
    assert mamba.time_limits == limits


def test_ranks_have_whole_groups_of_heads_and_channels() -> None:
    own = Shard(read(MAMBA2)[1], 0, 2).own.layers[0].mixers[0]
    assert isinstance(own, MambaDescription)
    assert (own.num_heads, own.num_groups, own.conv_size) == (3, 1, 32)
    conv = Shard(read(LFM2)[1], 0, 2).own.layers[0].mixers[0]
    assert isinstance(conv, ShortConvDescription)
    assert conv.size == 12
    with pytest.raises(BootError, match="--tensor-parallel 3: it does not divide the model's 2 groups of Mamba heads"):
        Shard(read(MAMBA2)[1], 0, 3)
    with pytest.raises(BootError, match="--tensor-parallel 5: it does not divide the model's 24 channels of"):
        Shard(read(LFM2 | {"layer_types": ["conv", "conv"]})[1], 0, 5)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (MAMBA2 | {"num_heads": 5}, "5 Mamba heads: not a multiple of 2 groups"),
        (MAMBA2 | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
        (MAMBA2 | {"conv_kernel": 9}, "conv_kernel must be at most 8, not 9"),
        (MAMBA2 | {"conv_kernel": 1}, "conv_kernel must be a positive integer, not 1"),
        (MAMBA2 | {"time_step_limit": [0.1, 0.001]}, "time_step_limit must be two numbers, a smaller and a larger"),
        (MAMBA2 | {"time_step_limit": 3}, "time_step_limit must be two numbers"),
        (NEMOTRON | {"hybrid_override_pattern": "M*X"}, "hybrid_override_pattern is .*X.*: supported kinds of layers"),
        (NEMOTRON | {"hybrid_override_pattern": None}, "hybrid_override_pattern is missing"),
        (NEMOTRON | {"hybrid_override_pattern": "M" * 1001}, "hybrid_override_pattern is 1001: supported are 1000"),
        (NEMOTRON | {"mlp_hidden_act": "silu"}, 'mlp_hidden_act is "silu": supported is relu2'),
        (GRANITE | {"mamba_n_heads": 7}, "mamba_n_heads is 7: it must divide the 48 values of all heads"),
        (FALCON | {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers must be 5 positive numbers"),
        (FALCON | {"mlp_multipliers": [1.0, 0.0]}, "mlp_multipliers must be a list of positive numbers"),
        (FALCON | {"projectors_bias": True}, "projectors_bias is true: supported are linear layers without biases"),
        (LFM2 | {"layer_types": ["conv"]}, "layer_types is .*: there are 2 layers"),
        (LFM2 | {"layer_types": ["conv", "mamba"]}, "layer_types is .*mamba.*: supported is full_attention, conv"),
        (LFM2_MOE | {"num_experts_per_tok": 40}, "num_experts_per_tok is 40: there are 32 experts"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)
