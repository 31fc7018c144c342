"""Nemotron-H and Nemotron 3: each layer is a Mamba block, attention without positions, an MLP or experts, by itself."""

import re
from dataclasses import replace

from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    LayerDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import glm4_moe, llama, mamba2
from scheduler_proc.computing.model.families.experts import ExpertNames, FusedExperts, sources_with
from scheduler_proc.computing.model.families.family import Source, renamed, with_other_names

DEFAULTS = HfConfig({"mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "norm_topk_prob": True})
FIELDS = mamba2.MambaFields("mamba_num_heads", "mamba_head_dim", state_size="ssm_state_size")
NAMES = {**mamba2.NAMES, "post_attention_layernorm": "norm", ".self_attn.": ".mixer.", ".mlp.": ".mixer."}
EXPERTS = ExpertNames(shared="shared_experts", fused=FusedExperts(gate_up="experts.up_proj"))
DEFAULT_HEAD_DIM = 128
KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
KINDS |= {name: name for name in KINDS.values()} | {"linear_attention": "mamba", "full_attention": "attention"}
"""Kinds of layers, by the letters of `hybrid_override_pattern` and the words of `layers_block_type`."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config = mamba2.with_eps(DEFAULTS.overridden(hf_config), "layer_norm_epsilon")
    hf_config.choice("mlp_hidden_act", ["relu2"], "relu2")
    hf_config.choice("mamba_hidden_act", ["silu"], "silu")
    norm, kinds = llama.describe_norm(hf_config, hf_config.count("hidden_size")), _read_kinds(hf_config)
    layers = {kind: _describe_layer(hf_config, kind, norm) for kind in dict.fromkeys(kinds)}
    return llama.describe_layers(hf_config, [layers[kind] for kind in kinds], norm)


def _read_kinds(hf_config: HfConfig) -> list[str]:
    pattern = "hybrid_override_pattern"
    words = hf_config.texts("layers_block_type") or hf_config.texts("layer_types") or [*hf_config.text(pattern)]
    if others := sorted(set(words) - set(KINDS)):
        raise hf_config.refuse(pattern, others, f"supported kinds of layers are {', '.join(KINDS)}")
    if len(words) > MAX_LAYERS:
        raise hf_config.refuse(pattern, len(words), f"supported are {MAX_LAYERS} layers")
    return [KINDS[word] for word in words]


def _describe_layer(hf_config: HfConfig, kind: str, norm: NormDescription) -> LayerDescription:
    match kind:
        case "mamba":
            return LayerDescription(attention_norm=norm, mixers=(mamba2.describe_mamba(hf_config, FIELDS),))
        case "attention":
            attention = llama.describe_attention(hf_config, DEFAULT_HEAD_DIM)
            return LayerDescription(attention_norm=norm, mixers=(replace(attention, rope=None),))
        case "mlp":
            return LayerDescription(mlp_norm=norm, mlp=_describe_mlp(hf_config, "intermediate_size"))
        case _:
            return LayerDescription(mlp_norm=norm, mlp=_describe_experts(hf_config))


def _describe_mlp(hf_config: HfConfig, size: str) -> DenseMlpDescription:
    has_bias = hf_config.flag("mlp_bias", False)
    return DenseMlpDescription(size=hf_config.count(size), activation="relu2", has_bias=has_bias)


def _describe_experts(hf_config: HfConfig) -> ExpertMlpDescription:
    if latent := hf_config.optional_count("moe_latent_size"):
        raise hf_config.refuse("moe_latent_size", latent, "supported are experts that read the residual stream itself")
    shared = _describe_mlp(hf_config, "moe_shared_expert_intermediate_size")
    return replace(glm4_moe.describe_experts(hf_config, 0), activation="relu2", shared=shared)


def list_sources(model: ModelDescription) -> list[Source]:
    """transformers 5 can save its own names, which begin with another word."""
    sources = llama.list_sources(model, sources_with(EXPERTS)) + mamba2.mamba_sources(model, "mixer")
    return with_other_names(renamed(sources, NAMES), {"backbone.": "model."})


FAMILY = mamba2.FAMILY.like(
    "NemotronHForCausalLM", "nemotron_h", describe, list_sources, ignored=re.compile(r"lm_head\.weight|mtp\..*")
)
