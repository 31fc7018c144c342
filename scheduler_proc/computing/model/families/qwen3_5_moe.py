"""Qwen3.5-MoE and Qwen3.6-MoE: Qwen3.5 with experts in every layer, and an expert of all tokens with a gate."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import qwen2_moe, qwen3_5, qwen3_next
from scheduler_proc.computing.model.families.rope import with_axes


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config.choice("hidden_act", ["silu"], "silu")
    experts = replace(qwen2_moe.describe_experts(hf_config), is_renormalized=True)
    model = qwen3_next.describe_hybrid(hf_config, [experts] * hf_config.num_layers)
    return with_axes(model, hf_config, qwen3_5.SECTIONS, is_interleaved=True)


FAMILY = qwen3_next.FAMILY.like("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", describe, defaults=qwen3_next.DEFAULTS)
