"""dots.llm1: a norm over each query and key head, and the experts of GLM-4.5."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import glm4_moe, llama
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, read_kinds

DEFAULTS = HfConfig({"first_k_dense_replace": 0})


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    mlps = glm4_moe.describe_mlps(hf_config)
    read_kinds(hf_config, [WHOLE_CONTEXT] * len(mlps), [WHOLE_CONTEXT])
    has_bias = hf_config.flag("attention_bias", False)
    attention = llama.describe_attention(hf_config, has_bias=has_bias, has_qk_norm=True)
    return llama.describe_model(hf_config, [attention] * len(mlps), mlps)


FAMILY = glm4_moe.FAMILY.like("Dots1ForCausalLM", "dots1", describe, defaults=DEFAULTS)
