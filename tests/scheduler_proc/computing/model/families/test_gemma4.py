"""Gemma 4: shapes of its models as transformers builds them, logits with wide heads, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kernels.cpu.library import use_library
from kernels.cpu.repeated_calls import RepeatedCalls
from messages.errors import BootError
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.kv_cache.kv_tensors import allocate_cache, page_bytes
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.expert_description import DenseAndExpertsDescription
from scheduler_proc.computing.model.families import gemma4
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import KNOWN, build_checkpoint, make_config
from tests.kernels.c_library import built_library
from tests.scheduler_proc.computing.drive import generate
from tests.scheduler_proc.computing.model.families.configs import check_sources, read
from tests.scheduler_proc.computing.model.test_decoder import our_logits, their_logits

CPU = Placement(torch.device("cpu"), torch.bfloat16)
PLE: dict[str, Any] = {"hidden_size_per_layer_input": 256, "final_logit_softcapping": 30.0}
NO_PLE: dict[str, Any] = {"hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0, "sliding_window": 1024}
MODELS: dict[str, dict[str, Any]] = {
    "E2B": PLE
    | {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8}
    | {"num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True}
    | {"layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7},
    "E4B": PLE
    | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "num_attention_heads": 8}
    | {"num_key_value_heads": 2, "num_kv_shared_layers": 18},
    "31B": NO_PLE
    | {"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32}
    | {"num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": True},
    "26B-A4B": NO_PLE
    | {"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True, "enable_moe_block": True}
    | {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
}
"""The options of the published sizes. A configuration is written as transformers does, by kind or by layer."""

SMALL = {"architectures": ["Gemma4ForCausalLM"], "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 6}
SMALL |= {"vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16}
SMALL |= {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 100}


def read_model(name: str, *, is_by_layer: bool = True) -> ModelDescription:
    fields = MODELS[name] | {"architectures": ["Gemma4ForCausalLM"]}
    if is_by_layer:
        fields |= json.loads(transformers.Gemma4TextConfig(**MODELS[name]).to_json_string())
    return read(fields, 131_072)[1]


@pytest.mark.parametrize("name", MODELS)
def test_sources_are_the_tensors_that_transformers_has(name: str) -> None:
    with torch.device("meta"):
        theirs = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**MODELS[name]))
    shapes = {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items() if key != "lm_head.weight"}
    model = read_model(name)
    ours: dict[str, tuple[int, ...]] = {}
    for source in gemma4.list_sources(model):
        stored = source.stacks[-1] if source.stacks else source
        ours[stored.name] = stored.shape
    assert ours == shapes
    assert read_model(name, is_by_layer=False) == model


def test_heads_windows_and_ropes_by_layer() -> None:
    layers = read_model("31B").find(AttentionDescription)
    assert [attention.window for attention in layers[:6]] == [1024] * 5 + [None]
    assert {attention.heads for attention in layers[:5]} == {(32, 16, 256)}
    assert (layers[5].heads, layers[5].shares_kv_weight, layers[4].shares_kv_weight) == ((32, 4, 512), True, False)
    local, whole = layers[0].rope, layers[5].rope
    assert local is not None
    assert whole is not None
    assert (local.theta, local.scaling) == (1e4, "default")
    assert (whole.theta, whole.scaling, whole.part, layers[5].num_rotated) == (1e6, "proportional", 0.25, 512)
    assert {attention.scale for attention in layers} == {1.0}


def test_last_layers_of_small_models_read_the_kv_of_earlier_ones() -> None:
    model = read_model("E2B")
    kv_layers = [mixer.kv_layer for mixer in model.mixers]
    assert kv_layers[:15] == [None] * 15
    assert set(kv_layers[15:]) == {13, 14}
    assert [index for index in range(15, 35) if kv_layers[index] == 14] == [19, 24, 29, 34]
    sizes = [layer.mlp.room_sizes(1536)["gated"] for layer in model.layers]
    assert (sizes[:15], sizes[15:]) == ([6144] * 15, [12288] * 20)
    assert model.layer_inputs_size == 35 * 256


def test_layers_that_read_the_kv_of_others_take_no_memory() -> None:
    model = read_model("E2B")
    assert page_bytes(model, 16, CPU) == 16 * 2 * 2 * (12 * 256 + 3 * 512)
    cache = allocate_cache(model, 2, 16, CPU)
    assert sum(tensor.nbytes for tensor in cache.tensors) == 2 * page_bytes(model, 16, CPU)
    assert sum(len(tensor) for tensor in cache.tensors) == 2 * 15
    assert all(cache.layers[index][0] is cache.layers[model.mixers[index].kv_layer][0] for index in range(15, 35))


def test_experts_are_next_to_the_dense_mlp_of_each_layer() -> None:
    for layer in read_model("26B-A4B").layers:
        assert isinstance(layer.mlp, DenseAndExpertsDescription)
        assert (layer.mlp.dense.size, layer.mlp.experts.size, layer.mlp_norm) == (2112, 704, None)
        assert (layer.mlp.experts.num_experts, layer.mlp.experts.num_chosen) == (128, 8)


@pytest.mark.parametrize("variant", KNOWN["Gemma4"])
def test_logits_with_heads_of_512_are_those_of_transformers(tmp_path: Path, variant: str) -> None:
    model = build_checkpoint(tmp_path, variant, head_dim=256, global_head_dim=512)
    prompts = [[5, 6, 7], list(range(40)), [9], list(range(50, 20, -1))]
    theirs = their_logits(model, prompts, "float32")
    assert float((our_logits(make_config(tmp_path), prompts) - theirs).abs().max()) <= 1e-4


@pytest.mark.parametrize("variant", KNOWN["Gemma4"])
def test_decode_steps_are_captured_and_layers_repeated(tmp_path: Path, variant: str) -> None:
    """With C kernels. The small model's last four layers compute only the last token; one of them is repeated."""
    sizes: dict[str, Any] = {"intermediate_size": 96, "head_dim": 32, "global_head_dim": 64}
    if variant == "gemma4-shared-kv":
        sizes["hidden_size_per_layer_input"] = 32
    build_checkpoint(tmp_path, variant, **sizes)
    use_library(built_library())
    runner = load_runner(make_config(tmp_path), lambda text, fraction: None)
    passes = runner.forward_passes
    assert isinstance(passes, CpuForwardPasses)
    generate(runner, [list(range(20))], 3)
    assert [num_rows for _, num_rows in passes.captures] == [1]
    if variant == "gemma4-shared-kv":
        assert passes.repeats is not None
        programs = [program for (first, *_), program in passes.repeats.known.items() if program and first == 3]
        assert [isinstance(step, RepeatedCalls) for step in programs[0].steps] == [False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention"] * 3},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True},
        {"enable_moe_block": True, "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 8},
    ],
)
def test_every_parameter_has_its_sources(changes: dict[str, Any]) -> None:
    check_sources(SMALL | changes)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"use_bidirectional_attention": "all"}, r"use_bidirectional_attention is \"all\": tokens cannot attend"),
        ({"hidden_activation": "relu"}, 'hidden_activation is "relu"'),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6: no layer before has K and V for layer 0"),
        ({"num_kv_shared_layers": 1}, "num_kv_shared_layers is 1: no layer before has K and V for layer 5"),
        (
            {
                "num_kv_shared_layers": 2,
                "layer_types": ["full_attention"] * 6,
                "per_layer_config": {"3": {"head_dim": 16}},
            },
            "no layer before has K and V for layer 4",
        ),
        ({"layer_types": ["full_attention"] * 5}, "layer_types is .*: there are 6 layers"),
        ({"layer_types": ["linear_attention"] * 6}, "layer_types is .*linear_attention"),
        ({"vocab_size_per_layer_input": 99}, "vocab_size_per_layer_input is 99: supported is 100"),
        ({"enable_moe_block": True}, "num_experts is missing"),
        ({"per_layer_config": {"5": 3}}, r"per_layer_config: 5 must be an object"),
        ({"num_key_value_heads": 3}, "4 attention heads: not a multiple of 3"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(SMALL | fields)
