"""Qwen2: Llama with a bias on query, key and value."""

from dataclasses import replace
from typing import Any

import pytest

from messages.errors import BootError
from tests.scheduler_proc.computing.model.families.configs import LLAMA, LLAMA3_SCALING, QWEN2, check_sources, read


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
        (QWEN2 | {"use_sliding_window": True}, "use_sliding_window is true: sliding-window attention is not supported"),
        (QWEN2 | {"hidden_act": "gelu"}, 'hidden_act is "gelu": supported is silu'),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)


def test_qwen2_is_llama_with_a_bias_on_query_key_and_value() -> None:
    ours, theirs = (read(fields)[1].layers[0] for fields in (QWEN2 | {"attention_bias": False}, LLAMA))
    assert ours == replace(theirs, attention=replace(theirs.attention, has_qkv_bias=True))


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
    ours = read(QWEN2 | old)[1].attention.rope
    assert ours == read(QWEN2 | {"rope_parameters": new})[1].attention.rope
    assert ours is not None
    assert ours.theta == old["rope_theta"]
