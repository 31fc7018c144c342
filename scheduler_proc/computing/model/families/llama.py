"""Llama and its likes (Mistral, SmolLM): RMS norms, rotary positions, grouped heads and a gated MLP."""

import re
from dataclasses import replace
from typing import Literal

from messages.errors import BootError
from scheduler_proc.computing.loading.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.decoder_config import DecoderConfig, RopeConfig
from scheduler_proc.computing.model.families.family import (
    Family,
    Source,
    embedding_source,
    head_sources,
    linear_sources,
)

ROPE_SCALINGS: dict[str, Literal["default", "linear", "llama3"]] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
}


def read_config(hf_config: HfConfig, max_model_len: int) -> DecoderConfig:
    _check_sliding_window(hf_config, max_model_len)
    has_attention_bias = hf_config.flag("attention_bias", False)
    return replace(
        read_plain_config(hf_config),
        has_qkv_bias=has_attention_bias,
        has_attention_out_bias=has_attention_bias,
        has_mlp_bias=hf_config.flag("mlp_bias", False),
    )


def read_plain_config(hf_config: HfConfig, default_head_dim: int | None = None) -> DecoderConfig:
    """Returns what Llama and its descendants spell alike: a decoder over the whole context, without biases.

    Without `default_head_dim` the heads share the hidden size where config.json gives no head_dim.
    """
    hidden_size, num_heads = hf_config.count("hidden_size"), hf_config.count("num_attention_heads")
    activation = hf_config.text("hidden_act", "silu")
    if activation != "silu":
        raise hf_config.refuse("hidden_act", activation, "supported is silu")
    head_dim = hf_config.optional_count("head_dim") or default_head_dim or hidden_size // num_heads
    if head_dim < 1:
        raise hf_config.refuse("hidden_size", hidden_size, f"it must be a multiple of {num_heads} heads")
    return DecoderConfig(
        vocab_size=hf_config.count("vocab_size"),
        hidden_size=hidden_size,
        num_layers=hf_config.count("num_hidden_layers", most=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=hf_config.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        mlp_size=hf_config.count("intermediate_size"),
        norm="rms",
        norm_eps=hf_config.number("rms_norm_eps", 1e-6),
        activation="silu_gated",
        attention_scale=head_dim**-0.5,
        rope=read_rope(hf_config),
        has_tied_head=hf_config.flag("tie_word_embeddings", False),
    )


def read_rope(hf_config: HfConfig) -> RopeConfig:
    """Reads both spellings: `rope_theta` with `rope_scaling` (transformers 4) and `rope_parameters` (5)."""
    parameters = hf_config.section("rope_parameters") or hf_config.section("rope_scaling") or HfConfig({})
    theta = parameters.number("rope_theta", hf_config.number("rope_theta", 10_000.0))
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind not in ROPE_SCALINGS:
        raise parameters.refuse("rope_type", kind, f"supported are {', '.join(ROPE_SCALINGS)}")
    rotated_part = parameters.number("partial_rotary_factor", hf_config.number("partial_rotary_factor", 1.0))
    if rotated_part != 1.0:
        raise hf_config.refuse("partial_rotary_factor", rotated_part, "supported is 1.0")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=parameters.number("factor"))
    return RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=parameters.number("factor"),
        low_freq_factor=parameters.number("low_freq_factor"),
        high_freq_factor=parameters.number("high_freq_factor"),
        original_max_positions=parameters.count("original_max_position_embeddings"),
    )


def _check_sliding_window(hf_config: HfConfig, max_model_len: int) -> None:
    """Attention here is over the whole context: the same thing as long as the context fits in the window."""
    window = hf_config.optional_count("sliding_window")
    if window is not None and max_model_len > window:
        raise BootError(
            f"config.json: sliding_window is {window}: sliding-window attention is not supported; "
            f"--max-model-len {window} serves this model within its window"
        )


def list_sources(config: DecoderConfig) -> list[Source]:
    hidden = config.hidden_size
    sources = [embedding_source("model.embed_tokens.weight", config)]
    for index in range(config.num_layers):
        block, layer = f"model.layers.{index}", f"layers.{index}"
        sources.append(Source(f"{block}.input_layernorm.weight", (hidden,), f"{layer}.attention_norm.weight"))
        sources += _attention_sources(f"{block}.self_attn", layer, config)
        sources.append(Source(f"{block}.post_attention_layernorm.weight", (hidden,), f"{layer}.mlp_norm.weight"))
        sources += _mlp_sources(f"{block}.mlp", layer, config)
    sources.append(Source("model.norm.weight", (hidden,), "final_norm.weight"))
    return sources + head_sources(config)


def _attention_sources(name: str, layer: str, config: DecoderConfig) -> list[Source]:
    query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, qkv, has_bias = config.hidden_size, f"{layer}.qkv", config.has_qkv_bias
    return [
        *linear_sources(f"{name}.q_proj", qkv, query_size, hidden, has_bias),
        *linear_sources(f"{name}.k_proj", qkv, kv_size, hidden, has_bias, first_row=query_size),
        *linear_sources(f"{name}.v_proj", qkv, kv_size, hidden, has_bias, first_row=query_size + kv_size),
        *linear_sources(f"{name}.o_proj", f"{layer}.attention_out", hidden, query_size, config.has_attention_out_bias),
    ]


def _mlp_sources(name: str, layer: str, config: DecoderConfig) -> list[Source]:
    hidden, size, mlp_in, has_bias = config.hidden_size, config.mlp_size, f"{layer}.mlp_in", config.has_mlp_bias
    return [
        *linear_sources(f"{name}.gate_proj", mlp_in, size, hidden, has_bias),
        *linear_sources(f"{name}.up_proj", mlp_in, size, hidden, has_bias, first_row=size),
        *linear_sources(f"{name}.down_proj", f"{layer}.mlp_out", hidden, size, has_bias),
    ]


FAMILY = Family(
    architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    model_types=("llama", "mistral"),
    read_config=read_config,
    list_sources=list_sources,
    prefix="model.",
    ignored=re.compile(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight"),
)
