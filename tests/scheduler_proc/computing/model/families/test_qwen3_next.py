"""Qwen3-Next, Qwen3.5 and Qwen3.5-MoE: their configurations, and where checkpoints have their parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from messages.errors import BootError
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.sharding import Shard
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.model.families.configs import LLAMA, check_sources, read
from tests.scheduler_proc.computing.model.test_decoder import our_logits

EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
QWEN3_NEXT = LLAMA | {
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 4,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 5,
    "shared_expert_intermediate_size": 20,
    **EXPERTS,
}
QWEN3_5 = QWEN3_NEXT | {"architectures": ["Qwen3_5ForCausalLM"]}
QWEN3_5_MOE = QWEN3_NEXT | {"architectures": ["Qwen3_5MoeForCausalLM"]}


@pytest.mark.parametrize(
    "fields",
    [
        QWEN3_NEXT,
        QWEN3_NEXT | {"mlp_only_layers": [0], "full_attention_interval": 3},
        QWEN3_5 | {"attention_bias": True},
        QWEN3_5_MOE,
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    check_sources(fields)


def recurrent(model: ModelDescription) -> list[int]:
    return [index for index, mixer in enumerate(model.mixers) if mixer.state]


def test_each_fourth_layer_attends_unless_config_json_names_others() -> None:
    assert recurrent(read(QWEN3_5)[1]) == [0, 1, 2]
    assert recurrent(read(QWEN3_5 | {"full_attention_interval": 2})[1]) == [0, 2]
    kinds = ["full_attention", "linear_attention", "full_attention", "full_attention"]
    assert recurrent(read(QWEN3_5 | {"layer_types": kinds})[1]) == [1]


def test_shares_of_experts_are_always_renormalized_in_qwen3_5() -> None:
    for fields, expected in ((QWEN3_5_MOE, True), (QWEN3_NEXT, False)):
        mlp: Any = read(fields | {"norm_topk_prob": False})[1].layers[0].mlp
        assert mlp.is_renormalized == expected


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layer_types": ["linear_attention", "mamba"] * 2}, r'layer_types is \["mamba"\]: supported is linear_attent'),
        ({"layer_types": ["linear_attention"]}, "layer_types is .*: there are 4 layers"),
        ({"linear_num_value_heads": 5}, "5 value heads .*: not a multiple of 2 key heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim must be a positive integer, not 0"),
        ({"output_gate_type": "sigmoid"}, 'output_gate_type is "sigmoid": supported is silu, swish'),
        ({"attn_output_gate": False}, "attn_output_gate is false"),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(QWEN3_5 | changes)


def test_ranks_divide_heads() -> None:
    """Value heads in GGUF's order belong to all key heads in turn: a rank has some of each, and all key heads."""
    _, model = read(QWEN3_5)
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 24}
    delta: Any = Shard(model, 1, 2).own.mixers[0]
    assert (delta.num_key_heads, delta.num_value_heads) == (1, 3)
    with pytest.raises(BootError, match="--tensor-parallel 3: it does not divide the model's 2 key heads"):
        Shard(read(QWEN3_5 | sizes)[1], 0, 3)
    _, tiled = read(QWEN3_5 | sizes | {"has_tiled_value_heads": True})
    delta = Shard(tiled, 1, 3).own.mixers[0]
    assert (delta.num_key_heads, delta.num_value_heads) == (2, 2)
    with pytest.raises(BootError, match="--tensor-parallel 2: it does not divide the model's 3 value heads of each"):
        Shard(tiled, 0, 2)


@pytest.mark.parametrize("missing", ["linear_attn.in_proj_z.weight", "self_attn.q_proj.weight", "linear_attn.A_log"])
def test_a_missing_tensor_is_named_once(tmp_path: Path, missing: str) -> None:
    build_checkpoint(tmp_path, "qwen3_5")
    tensors = load_file(tmp_path / "model.safetensors")
    lost = [name for name in tensors if name.endswith(missing)]
    save_file({name: tensor for name, tensor in tensors.items() if name not in lost}, tmp_path / "model.safetensors")
    with pytest.raises(BootError, match=rf"lacks {len(lost)} of \d+ tensors: .*{missing}"):
        our_logits(make_config(tmp_path), [[1, 2]])


def test_a_fused_linear_of_another_shape_is_refused(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "qwen3-next")
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    save_file(tensors | {name: torch.zeros(3, 64)}, tmp_path / "model.safetensors")
    with pytest.raises(BootError, match=rf"{name}: expected \[\d+, 64\], got \[3, 64\]"):
        our_logits(make_config(tmp_path), [[1, 2]])
