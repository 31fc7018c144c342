"""Llama and its likes (Mistral, SmolLM): RMS norms, rotary positions, grouped heads and a gated MLP."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    LayerDescription,
    MixerDescription,
    MlpDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.model.families.family import (
    Family,
    Source,
    embedding_source,
    head_sources,
    linear_sources,
)
from scheduler_proc.computing.model.families.rope import read_rope

NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
"""The norms of a layer by their names in a checkpoint."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    names = {*hf_config.texts("architectures"), hf_config.text("model_type", "")}
    is_mistral = bool(names & {"MistralForCausalLM", "mistral"})  # in transformers Llama has no window
    window = fit_window(hf_config.optional_count("sliding_window") if is_mistral else None, max_model_len)
    attention = describe_attention(hf_config, has_bias=hf_config.flag("attention_bias", False))
    return describe_model(
        hf_config,
        [replace(attention, window=window)] * hf_config.num_layers,
        [describe_dense_mlp(hf_config, has_bias=hf_config.flag("mlp_bias", False))] * hf_config.num_layers,
    )


def describe_attention(
    hf_config: HfConfig,
    default_head_dim: int | None = None,
    *,
    has_bias: bool = False,
    has_qkv_bias: bool = False,
    has_qk_norm: bool = False,
) -> AttentionDescription:
    """Returns attention over the whole context, from config.json as Llama and its descendants write it.

    Without head_dim in config.json and `default_head_dim`, the heads share the hidden size.
    """
    hidden_size, num_heads = hf_config.count("hidden_size"), hf_config.count("num_attention_heads")
    head_dim = hf_config.optional_count("head_dim") or default_head_dim or hidden_size // num_heads
    if head_dim < 1:
        raise hf_config.refuse("hidden_size", hidden_size, f"it must be a multiple of {num_heads} heads")
    return AttentionDescription(
        num_heads=num_heads,
        num_kv_heads=hf_config.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=read_rope(hf_config),
        qk_norm=describe_norm(hf_config, head_dim) if has_qk_norm else None,
        has_qkv_bias=has_bias or has_qkv_bias,
        has_out_bias=has_bias,
    )


def describe_dense_mlp(hf_config: HfConfig, *, has_bias: bool = False) -> DenseMlpDescription:
    hf_config.choice("hidden_act", ["silu"], "silu")
    return DenseMlpDescription(size=hf_config.count("intermediate_size"), activation="silu_gated", has_bias=has_bias)


def describe_norm(hf_config: HfConfig, size: int) -> NormDescription:
    return NormDescription(kind="rms", size=size, eps=hf_config.number("rms_norm_eps", 1e-6))


def describe_model(
    hf_config: HfConfig,
    attentions: Sequence[MixerDescription],
    mlps: Sequence[MlpDescription] = (),
    norm: NormDescription | None = None,
    norms: Mapping[str, str] = NORMS,
) -> ModelDescription:
    """Returns a model whose layers have these attentions; the rest is read as for Llama and its descendants.

    `mlps`: the MLP of each layer, if they are not all dense ones without a bias. `norm`: what all norms of the residual
    stream are, if they are not Llama's.
    """
    mlps = mlps or [describe_dense_mlp(hf_config)] * len(attentions)
    norm = norm or describe_norm(hf_config, hf_config.count("hidden_size"))
    own_norms: dict[str, Any] = dict.fromkeys(norms.values(), norm)
    layers = (
        replace(LayerDescription(mixers=(attention,), mlp=mlp), **own_norms)
        for attention, mlp in zip(attentions, mlps, strict=True)
    )
    return describe_layers(hf_config, layers, norm)


def describe_layers(
    hf_config: HfConfig, layers: Iterable[LayerDescription], final_norm: NormDescription
) -> ModelDescription:
    return ModelDescription(
        vocab_size=hf_config.count("vocab_size"),
        hidden_size=final_norm.size,
        layers=tuple(layers),
        final_norm=final_norm,
        has_tied_head=hf_config.flag("tie_word_embeddings", False),
    )


def with_attention(layer: LayerDescription, **changes: Any) -> LayerDescription:
    """Returns a layer that has attention alone with changed fields of it."""
    (attention,) = layer.mixers
    return replace(layer, mixers=(replace(attention, **changes),))


def fit_window(window: int | None, max_model_len: int) -> int | None:
    """Returns the window, `None` if no context is longer: attention is then the same as over the whole context."""
    return None if window is None or window >= max_model_len else window


def dense_mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    assert isinstance(mlp, DenseMlpDescription)
    size, mlp_in, has_bias = mlp.size, f"{layer}.mlp_in", mlp.has_bias
    return [
        *(linear_sources(f"{name}.gate_proj", mlp_in, size, hidden, has_bias) if mlp.is_gated else ()),
        *linear_sources(f"{name}.up_proj", mlp_in, size, hidden, has_bias, first_row=mlp.in_size - size),
        *linear_sources(f"{name}.down_proj", f"{layer}.mlp_out", hidden, size, has_bias),
    ]


MlpSources = Callable[[str, str, MlpDescription, int], list[Source]]
"""Takes the MLP's name in the checkpoint, the layer's name, its description and the hidden size."""


def attention_sources(name: str, layer: str, attention: AttentionDescription, hidden: int) -> list[Source]:
    query_size, kv_size = attention.out_size, attention.kv_size
    qkv, has_bias = f"{layer}.qkv", attention.has_qkv_bias
    sources = [
        *linear_sources(f"{name}.q_proj", qkv, query_size, hidden, has_bias),
        *linear_sources(f"{name}.k_proj", qkv, kv_size, hidden, has_bias, first_row=query_size),
        *linear_sources(f"{name}.v_proj", qkv, kv_size, hidden, has_bias, first_row=query_size + kv_size),
        *linear_sources(f"{name}.o_proj", f"{layer}.attention_out", hidden, query_size, attention.has_out_bias),
    ]
    if attention.qk_norm is not None:
        sizes = (query_size, kv_size) if attention.norms_whole_qk else (attention.head_dim,) * 2
        sources.append(Source(f"{name}.q_norm.weight", sizes[:1], f"{layer}.query_norm.weight"))
        sources.append(Source(f"{name}.k_norm.weight", sizes[1:], f"{layer}.key_norm.weight"))
    return sources


AttentionSources = Callable[[str, str, AttentionDescription, int], list[Source]]
"""Likewise, of the attention."""


def list_sources(
    model: ModelDescription,
    mlp_sources: MlpSources = dense_mlp_sources,
    norms: Mapping[str, str] = NORMS,
    attention_sources: AttentionSources = attention_sources,
) -> list[Source]:
    hidden = model.hidden_size
    sources = [embedding_source("model.embed_tokens.weight", model)]
    for index, description in enumerate(model.layers):
        block, layer = f"model.layers.{index}", f"layers.{index}"
        sources += [
            Source(f"{block}.{name}.weight", (hidden,), f"{layer}.{norm}.weight")
            for name, norm in norms.items()
            if getattr(description, norm, norm) is not None  # others are norms of the MLP
        ]
        if (attention := description.find(AttentionDescription)) is not None:
            sources += attention_sources(f"{block}.self_attn", layer, attention, hidden)
        if description.mlp is not None:
            sources += mlp_sources(f"{block}.mlp", layer, description.mlp, hidden)
    sources.append(Source("model.norm.weight", (hidden,), "final_norm.weight"))
    return sources + head_sources(model)


FAMILY = Family(
    architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    model_types=("llama", "mistral"),
    describe=describe,
    list_sources=list_sources,
    prefix="model.",
    ignored=re.compile(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight"),
)
