"""Gemma 3, models of text: Gemma 2 with norms of heads in place of caps, and another rope in layers with a window."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import gemma2, llama
from scheduler_proc.computing.model.families.headless import bidirectional
from scheduler_proc.computing.model.families.layer_kinds import read_ropes

DEFAULTS = HfConfig(
    {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "tie_word_embeddings": True,
    }
)
"""The values of fields that config.json may lack."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    if softcap := hf_config.optional_number("attn_logit_softcapping"):
        raise hf_config.refuse("attn_logit_softcapping", softcap, "Gemma 3 has no capped scores")
    is_encoder = hf_config.flag("use_bidirectional_attention", False)
    if is_encoder:  # as in EmbeddingGemma: a window is divided between both sides
        own = {"use_bidirectional_attention": False, "sliding_window": hf_config.count("sliding_window") // 2 + 1}
        hf_config = hf_config.overridden(HfConfig(own))
    model = gemma2.describe_gemma(hf_config, max_model_len, read_ropes(hf_config), period=6, has_qk_norm=True)
    if is_encoder:
        return bidirectional(model)
    return replace(model, layers=tuple(llama.with_attention(layer, sees_spans=True) for layer in model.layers))


FAMILY = gemma2.FAMILY.like("Gemma3ForCausalLM", "gemma3_text", describe, defaults=DEFAULTS)
