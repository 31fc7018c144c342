"""Qwen3: Llama with a norm over each query and key head."""

from dataclasses import replace
from typing import Any

import pytest

from messages.errors import BootError
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.families import llama
from tests.scheduler_proc.computing.model.families.configs import LLAMA, LLAMA3_SCALING, QWEN3, check_sources, read


@pytest.mark.parametrize(
    "fields",
    [
        QWEN3,
        QWEN3 | {"tie_word_embeddings": True, "attention_bias": True},
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    check_sources(fields)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]},
            r'layer_types is \["sliding_attention"\]: supported is full_attention',
        ),
        (QWEN3 | {"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, 'rope_type is "ntk": supported are default'),
        (QWEN3 | {"head_dim": 5}, "rotary positions of 5 values per head of 5"),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)


def test_qwen3_norms_its_heads_and_has_a_head_size_of_its_own() -> None:
    ours, theirs = (read(fields)[1].layers[0] for fields in (QWEN3, LLAMA | {"head_dim": 10}))
    head_norm = replace(theirs.attention_norm, size=10)
    assert ours == llama.with_attention(theirs, qk_norm=head_norm)
    (without, *_) = read({name: value for name, value in QWEN3.items() if name != "head_dim"})[1].layers
    assert without.find(AttentionDescription).head_dim == 128


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
    ours = read(QWEN3 | old)[1].find(AttentionDescription)[0].rope
    assert ours == read(QWEN3 | {"rope_parameters": new})[1].find(AttentionDescription)[0].rope
    assert ours is not None
    assert ours.theta == old["rope_theta"]
