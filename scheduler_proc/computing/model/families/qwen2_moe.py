"""Qwen2-MoE: Qwen2 with experts in place of the MLP of most layers, and an expert of all tokens with a gate."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import llama, qwen2, qwen3_moe


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    experts = describe_experts(hf_config)
    attention = llama.describe_attention(hf_config, has_qkv_bias=hf_config.flag("qkv_bias", True))
    layers = qwen2.with_windows(hf_config, attention, max_model_len)
    return llama.describe_model(hf_config, layers, qwen3_moe.alternate(hf_config, experts))


def describe_experts(hf_config: HfConfig) -> ExpertMlpDescription:
    shared = DenseMlpDescription(size=hf_config.count("shared_expert_intermediate_size"), activation="silu_gated")
    return replace(qwen3_moe.describe_experts(hf_config), shared=shared, has_shared_gate=True)


FAMILY = qwen3_moe.FAMILY.like("Qwen2MoeForCausalLM", "qwen2_moe", describe)
