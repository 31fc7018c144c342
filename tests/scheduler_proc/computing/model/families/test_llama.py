"""Llama and Mistral: their configuration and their weight names in our terms."""

from typing import Any

import pytest

from messages.errors import BootError
from scheduler_proc.computing.model.attention_description import AttentionDescription
from tests.scheduler_proc.computing.model.families.configs import LLAMA, LLAMA3_SCALING, check_sources, read

FACTORS = [2.0] * 4
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": FACTORS,
    "long_factor": FACTORS,
    "original_max_position_embeddings": 32,
    "factor": 2.0,
}


@pytest.mark.parametrize(
    "fields",
    [
        LLAMA,
        LLAMA | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 10},
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    check_sources(fields)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (LLAMA | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
        (LLAMA | {"num_key_value_heads": 4}, "6 attention heads: not a multiple of 4 key/value heads"),
        (LLAMA | {"head_dim": 5}, "rotary positions of 5 values per head of 5: an even number"),
        (LLAMA | {"head_dim": None, "hidden_size": 3}, "hidden_size is 3: it must be a multiple of 6 heads"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window must be a positive integer, not 0"),
        (LLAMA | {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, 'rope_type is "ntk": supported are default'),
        (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "max_position_embeddings is missing"),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "max_position_embeddings is missing"),
        (LLAMA | {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 1}}, "it must be greater than 1"),
        (LLAMA | {"rope_theta": 1.0}, "rope_theta is 1.0: it must be greater than 1"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        (LLAMA | {"head_dim": 8, "rope_scaling": LONGROPE | {"short_factor": [1.0] * 2}}, "2 rope factors, not 4"),
        (LLAMA | {"rope_scaling": LONGROPE | {"long_factor": ["2"]}}, "long_factor must be a list of positive numbers"),
        (LLAMA | {"head_dim": 10, "rope_scaling": LONGROPE}, "4 rope factors, not 5"),
        (LLAMA | {"rope_scaling": "linear"}, 'rope_scaling must be an object, not "linear"'),
        (LLAMA | {"partial_rotary_factor": 1.25}, "rotary positions of 5 values per head of 4"),
        (LLAMA | {"partial_rotary_factor": 0.2}, "rotary positions of 0 values per head of 4"),
        (LLAMA | {"mlp_bias": "no"}, 'mlp_bias must be true or false, not "no"'),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)


@pytest.mark.parametrize(("window", "served"), [(None, None), (1, 1), (63, 63), (64, None), (4096, None)])
def test_a_window_shorter_than_the_context_is_that_of_all_layers(window: int | None, served: int | None) -> None:
    model = read(MISTRAL | {"sliding_window": window})[1]
    assert [mixer.window for mixer in model.mixers] == [served] * 2
    assert read(LLAMA | {"sliding_window": window})[1] == read(LLAMA)[1], "transformers gives Llama no window"


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
def test_both_spellings_of_rope_mean_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    ours = read(LLAMA | old)[1].find(AttentionDescription)[0].rope
    assert ours == read(LLAMA | {"rope_parameters": new})[1].find(AttentionDescription)[0].rope
    assert ours is not None
    assert ours.theta == old["rope_theta"]
