"""Families with two kinds of layers: the fields of popular checkpoints, and their weight names in our terms."""

from typing import Any

import pytest

from messages.errors import BootError
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import RopeDescription
from tests.scheduler_proc.computing.model.families.configs import LLAMA, LLAMA3_SCALING, check_sources, read

CONTEXT = 1 << 16
SCALED = {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
GEMMA_2_2B = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GEMMA_3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
GEMMA_3_4B = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
OLMO_2_7B = {
    "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}
OLMO_3 = OLMO_2_7B | {
    "architectures": ["Olmo3ForCausalLM"],
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "sliding_window": 4096,
}
COMMAND_R7B = {
    "architectures": ["Cohere2ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.25,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "rope_theta": 50000,
    "rotary_pct": 1.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "vocab_size": 256000,
}
EXAONE_32B = {
    "architectures": ["Exaone4ForCausalLM"],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 27392,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16,
    "num_attention_heads": 40,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": SCALED | {"original_max_position_embeddings": 8192},
    "rope_theta": 1000000,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
    "vocab_size": 102400,
}
EXAONE_1B = EXAONE_32B | {
    "sliding_window": None,
    "sliding_window_pattern": None,
    "layer_types": ["full_attention"] * 64,
}


def rope(theta: float, factor: float = 1.0) -> RopeDescription:
    return RopeDescription(theta=theta, scaling="default" if factor == 1.0 else "linear", factor=factor)


def attentions(fields: dict[str, Any]) -> list[AttentionDescription]:
    return read(fields, CONTEXT)[1].find(AttentionDescription)


@pytest.mark.parametrize(
    ("fields", "period", "window", "local", "whole"),
    [
        (GEMMA_2_2B, 2, 4096, rope(1e4), rope(1e4)),
        (GEMMA_3_1B, 6, 512, rope(1e4), rope(1e6)),
        (GEMMA_3_4B, 6, 1024, rope(1e4), rope(1e6, 8.0)),
        (OLMO_2_7B, 1, None, None, rope(5e5)),
        (OLMO_3, 4, 4096, rope(5e5), rope(5e5)),
        (OLMO_3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, 4, 4096, rope(5e5), rope(5e5, 2.0)),
        (COMMAND_R7B, 4, 4096, rope(5e4), None),
    ],
)
def test_windows_and_ropes_of_popular_checkpoints(
    fields: dict[str, Any],
    period: int,
    window: int | None,
    local: RopeDescription | None,
    whole: RopeDescription | None,
) -> None:
    for index, attention in enumerate(attentions(fields), start=1):
        expected = (whole, None) if index % period == 0 else (local, window)
        assert (attention.rope, attention.window) == expected


def test_exaone_rotates_all_layers_only_without_windows() -> None:
    assert [each.rope is None for each in attentions(EXAONE_32B)] == [False, False, False, True] * 16
    assert {each.window for each in attentions(EXAONE_32B)} == {4096, None}
    assert {(each.window, each.rope is None) for each in attentions(EXAONE_1B)} == {(None, False)}


def test_both_spellings_of_two_ropes_mean_the_same() -> None:
    new = {name: value for name, value in GEMMA_3_4B.items() if name != "rope_scaling"} | {
        "rope_parameters": {
            "full_attention": {"factor": 8.0, "rope_type": "linear", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    assert read(new, CONTEXT)[1] == read(GEMMA_3_4B, CONTEXT)[1]


def test_fields_that_gemma_alone_has() -> None:
    model = read(GEMMA_2_2B, CONTEXT)[1]
    assert (model.embedding_scale, model.logit_softcap, model.has_tied_head) == (48.0, 30.0, True)
    assert (model.find(AttentionDescription)[0].scale, model.find(AttentionDescription)[0].softcap) == (1 / 16, 50.0)
    assert read(GEMMA_2_2B | {"query_pre_attn_scalar": 144}, CONTEXT)[1].find(AttentionDescription)[0].scale == 1 / 12
    assert read(GEMMA_3_4B, CONTEXT)[1].find(AttentionDescription)[0].heads == (8, 4, 256)


@pytest.mark.parametrize("architecture", ["Gemma2", "Gemma3", "Olmo2", "Olmo3", "Cohere2", "Exaone4"])
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 10}])
def test_sources_fill_every_element_of_every_parameter_once(architecture: str, changes: dict[str, Any]) -> None:
    small = {name: value for name, value in LLAMA.items() if architecture != "Exaone4" or name != "attention_bias"}
    check_sources(small | {"architectures": [f"{architecture}ForCausalLM"], "sliding_window": 9} | changes)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (GEMMA_2_2B | {"hidden_activation": "gelu"}, 'hidden_activation is "gelu": supported is gelu_pytorch_tanh'),
        (GEMMA_2_2B | {"use_bidirectional_attention": True}, "use_bidirectional_attention is true: tokens cannot"),
        (GEMMA_3_1B | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0: Gemma 3 has no capped scores"),
        (GEMMA_3_1B | {"sliding_window_pattern": 0}, "sliding_window_pattern must be a positive integer, not 0"),
        (GEMMA_3_1B | {"architectures": ["Gemma3ForConditionalGeneration"]}, "which is not supported"),
        (OLMO_3 | {"layer_types": ["full_attention"]}, "layer_types is .*: there are 32 layers"),
        (OLMO_3 | {"layer_types": ["chunked_attention"] * 32}, "supported is full_attention, sliding_attention"),
        (COMMAND_R7B | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
        (EXAONE_32B | {"layer_types": None}, 'sliding_window_pattern must be a positive integer, not "LLLG"'),
        (EXAONE_32B | {"rope_scaling": LLAMA3_SCALING | {"factor": None}}, "factor is missing"),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields, CONTEXT)
