"""Fields of real models in our terms, and what is refused: Phi, SmolLM3, Granite, GLM-4 and Ministral 3."""

from typing import Any

import pytest

from messages.errors import BootError
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from tests.scheduler_proc.computing.model.families.configs import LLAMA, check_sources, read

COMMON = {"hidden_act": "silu", "attention_bias": False, "rope_theta": 10_000.0, "rms_norm_eps": 1e-5}


def shape(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {**COMMON, **dict(zip(names, (hidden, inner, layers, heads, kv_heads), strict=True)), "vocab_size": vocab}


PHI3_MINI: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    **shape(3072, 8192, 32, 32, 32, 32064),
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rope_scaling": None,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
}
PHI4_MINI: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    **shape(3072, 8192, 32, 24, 8, 200064),
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0, *[1.1] * 47]},
    "sliding_window": 262144,
    "tie_word_embeddings": True,
}
SMOLLM3: dict[str, Any] = {
    "architectures": ["SmolLM3ForCausalLM"],
    **shape(2048, 11008, 36, 16, 4, 128256),
    "rope_theta": 5_000_000.0,
    "max_position_embeddings": 65536,
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "layer_types": ["full_attention"] * 36,
    "use_sliding_window": False,
    "sliding_window": None,
}
GRANITE: dict[str, Any] = {
    "architectures": ["GraniteForCausalLM"],
    **shape(2048, 8192, 40, 32, 8, 49159),
    "rope_theta": 10_000_000.0,
    "max_position_embeddings": 131072,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.015625,
    "logits_scaling": 8.0,
    "tie_word_embeddings": True,
}
GRANITE4: dict[str, Any] = {
    **GRANITE,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    **shape(2560, 8192, 40, 40, 8, 100352),
    "layer_types": ["attention"] * 40,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 8192,
    "position_embedding_type": "rope",
}
GLM4: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"],
    **shape(4096, 13696, 40, 32, 2, 151552),
    "attention_bias": True,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
MINISTRAL3: dict[str, Any] = {
    "architectures": ["Ministral3ForCausalLM"],
    **shape(3072, 9216, 26, 32, 8, 131072),
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    "sliding_window": None,
    "tie_word_embeddings": True,
}
REAL = {
    "Phi-3-mini": PHI3_MINI,
    "Phi-4-mini": PHI4_MINI,
    "SmolLM3": SMOLLM3,
    "Granite": GRANITE,
    "Granite 4": GRANITE4,
    "GLM-4": GLM4,
    "Ministral 3": MINISTRAL3,
}


def read_real(name: str) -> ModelDescription:
    return read(REAL[name], REAL[name]["max_position_embeddings"])[1]


def small(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with a small model's sizes."""
    return fields | {name: value for name, value in LLAMA.items() if name != "architectures"} | {"head_dim": 8}


@pytest.mark.parametrize("name", REAL)
def test_sources_fill_every_element_of_every_parameter_once(name: str) -> None:
    fields = small(REAL[name])
    kinds = fields.get("layer_types", [])[: fields["num_hidden_layers"]]
    check_sources(fields | {"rope_scaling": None, "no_rope_layers": None, "layer_types": kinds})


def test_heads_and_parts_that_are_rotated() -> None:
    attentions = {name: read_real(name).find(AttentionDescription)[0] for name in REAL}
    found = {name: (attention.heads, attention.num_rotated) for name, attention in attentions.items()}
    assert found == {
        "Phi-3-mini": ((32, 32, 96), 96),
        "Phi-4-mini": ((24, 8, 128), 96),
        "SmolLM3": ((16, 4, 128), 128),
        "Granite": ((32, 8, 64), 64),
        "Granite 4": ((40, 8, 64), 64),
        "GLM-4": ((32, 2, 128), 64),
        "Ministral 3": ((32, 8, 128), 128),
    }


def test_a_window_shorter_than_the_context() -> None:
    assert {attention.window for attention in read_real("Phi-3-mini").find(AttentionDescription)} == {2047}
    assert {attention.window for attention in read_real("Phi-4-mini").find(AttentionDescription)} == {None}


def test_each_fourth_layer_of_smollm3_is_not_rotated() -> None:
    ropes = [attention.rope is not None for attention in read_real("SmolLM3").find(AttentionDescription)]
    assert ropes == [True, True, True, False] * 9
    by_interval = read({**SMOLLM3, "no_rope_layers": None})[1].find(AttentionDescription)
    assert [attention.rope is not None for attention in by_interval] == ropes
    assert read_real("SmolLM3").has_tied_head


def test_granite_scales_what_enters_the_residual_stream_in_place_of_updates() -> None:
    model = read_real("Granite")
    assert model.embedding_scale == pytest.approx(12 / 0.22)
    assert model.final_norm.eps == model.layers[3].mlp_norm.eps == pytest.approx(1e-5 / 0.22**2)  # pyright: ignore[reportOptionalMemberAccess]
    assert (model.find(AttentionDescription)[0].scale, model.logit_scale) == (0.015625, 0.125)


def test_norms_of_glm_4_are_before_and_after() -> None:
    layer = read_real("GLM-4").layers[0]
    assert None not in (layer.attention_norm, layer.attention_out_norm, layer.mlp_norm, layer.mlp_out_norm)
    attention = read_real("GLM-4").find(AttentionDescription)[0]
    assert (attention.has_qkv_bias, attention.has_out_bias) == (True, False)
    assert not read({**GLM4, "attention_bias": False})[1].find(AttentionDescription)[0].has_qkv_bias


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (PHI4_MINI | {"partial_rotary_factor": 0.5}, "48 rope factors, not 32"),
        (PHI3_MINI | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
        (SMOLLM3 | {"use_sliding_window": True}, "windows in SmolLM3 are not supported"),
        (SMOLLM3 | {"no_rope_layers": [1]}, "no_rope_layers is .1.: there are 36 layers"),
        (GRANITE | {"residual_multiplier": 0}, "residual_multiplier must be a positive number, not 0"),
        (GRANITE | {"logits_scaling": "8"}, "logits_scaling must be a positive number"),
        (GRANITE4 | {"layer_types": ["mamba", "attention"]}, "layer_types is .*: there are 40 layers"),
        (GRANITE4 | {"layer_types": ["rwkv"] * 40}, "layer_types is .*rwkv.*: supported is attention, .*, mamba"),
        (
            GRANITE4 | {"position_embedding_type": "alibi"},
            'embedding_type is "alibi": supported is rope, nope',
        ),
        (GLM4 | {"partial_rotary_factor": 0.01}, "rotary positions of 1 values per head of 128"),
        (MINISTRAL3 | {"rope_parameters": None}, "rope_parameters must be an object, not null"),
        (
            MINISTRAL3 | {"rope_parameters": {"rope_type": "default", "original_max_position_embeddings": 9}},
            "llama_4_scaling_beta is missing",
        ),
        (MINISTRAL3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5: supported is 1"),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)
