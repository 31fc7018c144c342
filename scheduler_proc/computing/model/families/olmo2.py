"""OLMo 2: norms after attention and MLP, and one of all query heads and one of all key heads together."""

from dataclasses import replace
from functools import partial

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama

NORMS = {"post_attention_layernorm": "attention_out_norm", "post_feedforward_layernorm": "mlp_out_norm"}
DEFAULTS = HfConfig({"rms_norm_eps": 1e-5})


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    return llama.describe_model(hf_config, [describe_attention(hf_config)] * hf_config.num_layers, norms=NORMS)


def describe_attention(hf_config: HfConfig) -> AttentionDescription:
    has_bias = hf_config.flag("attention_bias", False)
    attention = llama.describe_attention(hf_config, has_bias=has_bias, has_qk_norm=True)
    return replace(attention, norms_whole_qk=True)


FAMILY = llama.FAMILY.like("Olmo2ForCausalLM", "olmo2", describe, partial(llama.list_sources, norms=NORMS), DEFAULTS)
