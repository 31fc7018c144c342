"""GLM-4 (0414): norms before and after attention and MLP, fused MLPs, and half of each head rotated.

In its checkpoints neighbouring rows of query and key are rotated together; they are loaded in our order.
"""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, phi3
from scheduler_proc.computing.model.families.family import InterleavedHeads, Source

DEFAULTS = HfConfig(
    {"partial_rotary_factor": 0.5, "attention_bias": True, "head_dim": 128, "num_key_value_heads": 2}
    | {"rms_norm_eps": 1.5625e-7}
)
NORMS = {
    "input_layernorm": "attention_norm",
    "post_self_attn_layernorm": "attention_out_norm",
    "post_attention_layernorm": "mlp_norm",
    "post_mlp_layernorm": "mlp_out_norm",
}


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    attention = llama.describe_attention(hf_config, has_qkv_bias=hf_config.flag("attention_bias", True))
    return llama.describe_model(hf_config, [attention] * hf_config.num_layers, norms=NORMS)


def list_sources(model: ModelDescription) -> list[Source]:
    return with_interleaved_heads(llama.list_sources(model, phi3.mlp_sources, NORMS), model)


def with_interleaved_heads(sources: list[Source], model: ModelDescription) -> list[Source]:
    """In layers without positions another order of the same rows of queries and keys changes nothing."""
    attention = max(model.find(AttentionDescription), key=lambda each: each.num_rotated)
    heads = {"q_proj": attention.num_heads, "k_proj": attention.num_kv_heads}
    return [
        replace(source, change=InterleavedHeads(heads[part], attention.num_rotated))
        if (part := source.name.split(".")[-2]) in heads
        else source
        for source in sources
    ]


FAMILY = llama.FAMILY.like("Glm4ForCausalLM", "glm4", describe, list_sources, defaults=DEFAULTS)
