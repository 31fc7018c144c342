"""Qwen3, the dense models: Llama with a norm over each query and key head, and heads of a size of their own."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.qwen2 import with_windows

DEFAULT_HEAD_DIM = 128


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    return llama.describe_model(hf_config, with_windows(hf_config, describe_attention(hf_config), max_model_len))


def describe_attention(hf_config: HfConfig) -> AttentionDescription:
    has_bias = hf_config.flag("attention_bias", False)
    return llama.describe_attention(hf_config, DEFAULT_HEAD_DIM, has_bias=has_bias, has_qk_norm=True)


FAMILY = llama.FAMILY.like("Qwen3ForCausalLM", "qwen3", describe)
