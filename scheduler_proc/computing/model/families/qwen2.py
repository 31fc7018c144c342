"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama

WHOLE_CONTEXT = "full_attention"


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    check_whole_context(hf_config)
    attention = llama.describe_attention(hf_config, has_qkv_bias=True, has_out_bias=False)
    return llama.describe_model(hf_config, attention)


def check_whole_context(hf_config: HfConfig) -> None:
    """Raises `BootError` for layers with a window; `sliding_window` alone is the size of one that is not used."""
    if hf_config.flag("use_sliding_window", False):
        raise hf_config.refuse("use_sliding_window", True, "sliding-window attention is not supported")
    others = sorted({kind for kind in hf_config.texts("layer_types") if kind != WHOLE_CONTEXT})
    if others:
        raise hf_config.refuse("layer_types", others, f"supported is {WHOLE_CONTEXT}")


FAMILY = replace(llama.FAMILY, architectures=("Qwen2ForCausalLM",), model_types=("qwen2",), describe=describe)
