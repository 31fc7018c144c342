"""Qwen2: Llama with a bias on query, key and value."""

from typing import Any

import pytest

from messages.errors import BootError
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.families import llama
from tests.scheduler_proc.computing.model.families.configs import LLAMA, LLAMA3_SCALING, QWEN2, check_sources, read

WINDOWS = {"use_sliding_window": True}


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({}, [None, None]),
        (WINDOWS, [None, None]),  # the first layers are 28
        (WINDOWS | {"max_window_layers": 1}, [None, 32]),
        (WINDOWS | {"max_window_layers": 0}, [32, 32]),
        (WINDOWS | {"max_window_layers": 0, "sliding_window": 64}, [None, None]),
        (WINDOWS | {"layer_types": ["sliding_attention", "full_attention"]}, [32, None]),
    ],
)
def test_layers_with_a_window(fields: dict[str, Any], windows: list[int | None]) -> None:
    assert [mixer.window for mixer in read(QWEN2 | fields)[1].mixers] == windows


@pytest.mark.parametrize(
    "fields",
    [
        QWEN2,
        QWEN2 | {"tie_word_embeddings": True},
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    check_sources(fields)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            QWEN2 | {"layer_types": ["full_attention", "sliding_attention"]},
            r'layer_types is \["sliding_attention"\]: supported is full_attention',
        ),
        (QWEN2 | WINDOWS | {"layer_types": ["chunked_attention"] * 2}, "supported is full_attention, sliding_att"),
        (QWEN2 | WINDOWS | {"layer_types": ["full_attention"]}, "layer_types is .*: there are 2 layers"),
        (QWEN2 | WINDOWS | {"sliding_window": None}, "sliding_window is missing"),
        (QWEN2 | WINDOWS | {"max_window_layers": -1}, "max_window_layers must be an integer from 0 on, not -1"),
        (QWEN2 | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)


def test_qwen2_is_llama_with_a_bias_on_query_key_and_value() -> None:
    ours, theirs = (read(fields)[1].layers[0] for fields in (QWEN2 | {"attention_bias": False}, LLAMA))
    assert ours == llama.with_attention(theirs, has_qkv_bias=True)


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
    ours = read(QWEN2 | old)[1].find(AttentionDescription)[0].rope
    assert ours == read(QWEN2 | {"rope_parameters": new})[1].find(AttentionDescription)[0].rope
    assert ours is not None
    assert ours.theta == old["rope_theta"]
