"""GPT-2: its configuration and its weight names in our terms."""

from typing import Any

import pytest

from messages.errors import BootError
from tests.scheduler_proc.computing.model.families.configs import GPT2, check_sources, read


@pytest.mark.parametrize(
    "fields",
    [
        GPT2,
        GPT2 | {"tie_word_embeddings": False, "n_inner": 7},
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    check_sources(fields)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (GPT2 | {"activation_function": "relu"}, 'activation_function is "relu": supported is gelu_new'),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention is true"),
        (GPT2 | {"n_head": 5}, r"n_embd is 12: it must be a multiple of n_head \(5\)"),
        (GPT2 | {"n_positions": 32}, "--max-model-len 64: this model has 32 positions"),
        (GPT2 | {"n_layer": None}, "n_layer is missing"),
        (GPT2 | {"n_layer": "2"}, 'n_layer must be a positive integer, not "2"'),
    ],
)
def test_what_cannot_run_as_it_must_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BootError, match=complaint):
        read(fields)
