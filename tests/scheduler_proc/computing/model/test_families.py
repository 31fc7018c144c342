"""Families translate configurations and weight names without torch, and refuse what they cannot run as it must."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from messages.errors import BootError
from scheduler_proc.computing.loading.hf_config import HfConfig
from scheduler_proc.computing.model.decoder_config import DecoderConfig, RopeConfig, parameter_shapes
from scheduler_proc.computing.model.families.family import Family
from scheduler_proc.computing.model.families.registry import FAMILIES, find_family
from scheduler_proc.computing.model.rope_tables import make_rope_tables

GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_positions": 64,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 32}
QWEN3 = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 10, "layer_types": ["full_attention"] * 2}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(fields: dict[str, Any], max_model_len: int = 64) -> tuple[Family, DecoderConfig]:
    hf_config = HfConfig(fields)
    family = find_family(hf_config)
    return family, family.read_config(hf_config, max_model_len)


@pytest.mark.parametrize(
    "fields",
    [
        GPT2,
        GPT2 | {"tie_word_embeddings": False, "n_inner": 7},
        LLAMA,
        LLAMA | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 10},
        QWEN2,
        QWEN2 | {"tie_word_embeddings": True},
        QWEN3,
        QWEN3 | {"tie_word_embeddings": True, "attention_bias": True},
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    family, config = read(fields)
    shapes = parameter_shapes(config)
    filled = {name: [0] * shape[0] for name, shape in shapes.items()}
    for source in family.list_sources(config):
        shape = source.shape[::-1] if source.is_transposed else source.shape
        assert shape[1:] == shapes[source.target][1:]
        for row in range(source.first_row, source.first_row + source.num_rows):
            filled[source.target][row] += 1
    assert all(count == 1 for counts in filled.values() for count in counts)


def test_no_torch_is_needed() -> None:
    code = "import sys, scheduler_proc.computing.model.families.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    with pytest.raises(BootError, match=f"BertModel, which is not supported; supported are {supported}"):
        find_family(HfConfig({"architectures": ["BertModel"]}))
    with pytest.raises(BootError, match="no architecture"):
        find_family(HfConfig({}))


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("Qwen2MoeForCausalLM", "a mixture of experts"),
        ("Qwen3MoeForCausalLM", "a mixture of experts"),
        ("MixtralForCausalLM", "a mixture of experts"),
        ("Qwen2VLForConditionalGeneration", "a model of images and text"),
    ],
)
def test_a_refusal_says_what_kind_of_model_it_is(architecture: str, kind: str) -> None:
    with pytest.raises(BootError, match=rf"{architecture} \({kind}\), which is not supported"):
        find_family(HfConfig(QWEN3 | {"architectures": [architecture]}))


def test_quantized_weights_are_refused() -> None:
    """Some have tensors of the right names and shapes, whose scales would be left out."""
    with pytest.raises(BootError, match='quantization_config is "fp8": quantized checkpoints are not supported'):
        read(QWEN3 | {"quantization_config": {"quant_method": "fp8"}})


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (GPT2 | {"activation_function": "relu"}, 'activation_function is "relu": supported are gelu_new'),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention is true"),
        (GPT2 | {"n_head": 5}, r"n_embd is 12: it must be a multiple of n_head \(5\)"),
        (GPT2 | {"n_positions": 32}, "--max-model-len 64: this model has 32 positions"),
        (GPT2 | {"n_layer": None}, "n_layer is missing"),
        (GPT2 | {"n_layer": "2"}, 'n_layer must be a positive integer, not "2"'),
        (LLAMA | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
        (LLAMA | {"num_key_value_heads": 4}, "6 attention heads are no multiple of 4 key/value heads"),
        (LLAMA | {"head_dim": 5}, "an even head size, not 5"),
        (LLAMA | {"sliding_window": 63}, "sliding_window is 63.*--max-model-len 63"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 'rope_type is "yarn": supported are default'),
        (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_type is "dynamic"'),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        (LLAMA | {"rope_scaling": "linear"}, 'rope_scaling must be an object, not "linear"'),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5: supported is 1.0"),
        (QWEN2 | {"use_sliding_window": True}, "use_sliding_window is true: sliding-window attention is not supported"),
        (QWEN3 | {"use_sliding_window": True}, "use_sliding_window is true"),
        (
            QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]},
            r'layer_types is \["sliding_attention"\]: supported is full_attention',
        ),
        (QWEN3 | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 'rope_type is "yarn": supported are default'),
        (QWEN2 | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
        (QWEN3 | {"head_dim": 5}, "an even head size, not 5"),
        (LLAMA | {"mlp_bias": "no"}, 'mlp_bias must be true or false, not "no"'),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)


def test_a_window_as_long_as_the_context_never_bites() -> None:
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 64}
    assert read(mistral)[1] == read(LLAMA)[1]


def test_qwen2_is_llama_with_a_bias_on_query_key_and_value() -> None:
    assert read(QWEN2 | {"attention_bias": False})[1] == replace(read(LLAMA)[1], has_qkv_bias=True)


def test_qwen3_norms_its_heads_and_has_a_head_size_of_its_own() -> None:
    assert read(QWEN3)[1] == replace(read(LLAMA | {"head_dim": 10})[1], has_qk_norm=True)
    assert read({name: value for name, value in QWEN3.items() if name != "head_dim"})[1].head_dim == 128


@pytest.mark.parametrize("fields", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_theta": 2e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 2e4},
        ),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3_SCALING}, LLAMA3_SCALING | {"rope_theta": 5e5}),
    ],
)
def test_both_spellings_of_rope_mean_the_same(fields: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    ours = read(fields | old)[1].rope
    assert ours == read(fields | {"rope_parameters": new})[1].rope
    assert ours is not None
    assert ours.theta == old["rope_theta"]


@pytest.mark.parametrize("scaling", ["default", "linear", "llama3"])
def test_angles_are_those_of_transformers(scaling: str) -> None:
    parameters = {"rope_theta": 1e4, "rope_type": scaling}
    if scaling != "default":
        parameters |= {"factor": 8.0}
    if scaling == "llama3":
        parameters |= LLAMA3_SCALING
    hf_config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=4096, rope_parameters=parameters
    )
    if scaling == "default":
        frequencies = 1.0 / 1e4 ** (torch.arange(0, 128, 2).float() / 128)
    else:
        frequencies, _ = ROPE_INIT_FUNCTIONS[scaling](hf_config, torch.device("cpu"))
    angles = torch.arange(4096).float()[:, None] * frequencies
    ours = read(LLAMA | {"rope_parameters": parameters})[1].rope
    assert isinstance(ours, RopeConfig)
    cos, sin = make_rope_tables(ours, 128, 4096, torch.device("cpu"))
    torch.testing.assert_close(cos, angles.cos(), rtol=0, atol=1e-5)
    torch.testing.assert_close(sin, angles.sin(), rtol=0, atol=1e-5)
