"""OLMoE: experts in place of each MLP, and a norm of all query heads and one of all key heads together."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import llama, olmo2, qwen3_moe


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config = olmo2.DEFAULTS.overridden(hf_config)
    if (limit := hf_config.optional_number("clip_qkv")) is not None:
        raise hf_config.refuse("clip_qkv", limit, "clipped queries, keys and values are not supported")
    experts = ExpertMlpDescription(
        num_experts=hf_config.optional_count("num_experts") or hf_config.count("num_local_experts"),
        num_chosen=hf_config.count("num_experts_per_tok", 8),
        size=hf_config.count("intermediate_size"),
        is_renormalized=hf_config.flag("norm_topk_prob", False),
    )
    attentions = [olmo2.describe_attention(hf_config)] * hf_config.num_layers
    return llama.describe_model(hf_config, attentions, [experts] * len(attentions))


FAMILY = qwen3_moe.FAMILY.like("OlmoeForCausalLM", "olmoe", describe)
