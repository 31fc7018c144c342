"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value, and in some models a window in some layers."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, WINDOW, read_kinds

FIRST_WINDOW_LAYER = 28
"""The default of `max_window_layers`."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    attention = llama.describe_attention(hf_config, has_qkv_bias=True)
    return llama.describe_model(hf_config, with_windows(hf_config, attention, max_model_len))


def with_windows(
    hf_config: HfConfig, attention: AttentionDescription, max_model_len: int
) -> list[AttentionDescription]:
    """Returns the attention of each layer. `sliding_window` alone is the size of a window that is not used."""
    num_layers, window = hf_config.num_layers, read_window(hf_config)
    first = hf_config.count("max_window_layers", FIRST_WINDOW_LAYER, least=0) if window else num_layers
    by_index = [WINDOW if index >= first else WHOLE_CONTEXT for index in range(num_layers)]
    kinds = read_kinds(hf_config, by_index, (WHOLE_CONTEXT, WINDOW) if window else (WHOLE_CONTEXT,))
    fitted = llama.fit_window(window, max_model_len)
    return [replace(attention, window=fitted if kind == WINDOW else None) for kind in kinds]


def read_window(hf_config: HfConfig) -> int | None:
    return hf_config.count("sliding_window") if hf_config.flag("use_sliding_window", False) else None


FAMILY = llama.FAMILY.like("Qwen2ForCausalLM", "qwen2", describe)
