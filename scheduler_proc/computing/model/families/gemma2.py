"""Gemma 2: norms before and after attention and MLP, windows in every second layer, capped scores and logits."""

from dataclasses import replace
from functools import partial

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, ModelDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.layer_kinds import Ropes, describe_kinds, read_ropes

NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_out_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_out_norm",
}
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS = HfConfig(
    {
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    }
)
"""The values of fields that config.json may lack."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    softcap = hf_config.optional_number("attn_logit_softcapping")
    return describe_gemma(hf_config, max_model_len, read_ropes(hf_config), period=2, softcap=softcap)


def describe_gemma(
    hf_config: HfConfig,
    max_model_len: int,
    ropes: Ropes,
    *,
    period: int,
    softcap: float | None = None,
    has_qk_norm: bool = False,
) -> ModelDescription:
    """`period`: each layer of this number attends to the whole context."""
    hf_config.refuse_flag("use_bidirectional_attention", "tokens cannot attend to later ones")
    hf_config.choice("hidden_activation", [ACTIVATION], ACTIVATION)
    has_bias = hf_config.flag("attention_bias", False)
    attention = llama.describe_attention(hf_config, has_bias=has_bias, has_qk_norm=has_qk_norm)
    scale = hf_config.number("query_pre_attn_scalar") ** -0.5
    qk_norm = attention.qk_norm and replace(attention.qk_norm, is_zero_centered=True)
    attention = replace(attention, scale=scale, softcap=softcap, qk_norm=qk_norm)
    attentions = describe_kinds(hf_config, attention, max_model_len, period, ropes)
    mlp = DenseMlpDescription(size=hf_config.count("intermediate_size"), activation="gelu_tanh_gated")
    norm = replace(llama.describe_norm(hf_config, hf_config.count("hidden_size")), is_zero_centered=True)
    model = llama.describe_model(hf_config, attentions, [mlp] * len(attentions), norm, NORMS)
    logit_softcap = hf_config.optional_number("final_logit_softcapping")
    return replace(model, embedding_scale=norm.size**0.5, rounds_embedding_scale=True, logit_softcap=logit_softcap)


FAMILY = llama.FAMILY.like("Gemma2ForCausalLM", "gemma2", describe, partial(llama.list_sources, norms=NORMS), DEFAULTS)
