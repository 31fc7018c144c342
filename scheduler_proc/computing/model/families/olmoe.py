"""OLMoE: experts in place of each MLP, and a norm of all query heads and one of all key heads together."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, olmo2, qwen3_moe

DEFAULTS = olmo2.DEFAULTS.overridden(HfConfig({"num_experts_per_tok": 8}))


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    if (limit := hf_config.optional_number("clip_qkv")) is not None:
        raise hf_config.refuse("clip_qkv", limit, "clipped queries, keys and values are not supported")
    size = HfConfig({"moe_intermediate_size": hf_config.count("intermediate_size")})
    experts = qwen3_moe.describe_experts(hf_config.overridden(size))
    attentions = [olmo2.describe_attention(hf_config)] * hf_config.num_layers
    return llama.describe_model(hf_config, attentions, [experts] * len(attentions))


FAMILY = qwen3_moe.FAMILY.like("OlmoeForCausalLM", "olmoe", describe, defaults=DEFAULTS)
