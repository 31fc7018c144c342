"""GLM-4.5: half of each head rotated, dense first layers, then experts chosen by sigmoids and one of all tokens."""

from dataclasses import replace
from functools import partial
from typing import Any

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, MlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import llama, qwen3_moe
from scheduler_proc.computing.model.families.experts import ExpertNames, sources_with

DEFAULTS = HfConfig({"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "norm_topk_prob": True})
NAMES = ExpertNames(shared="shared_experts")


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    has_bias, has_norm = hf_config.flag("attention_bias", False), hf_config.flag("use_qk_norm", False)
    attention = llama.describe_attention(hf_config, has_qkv_bias=has_bias, has_qk_norm=has_norm)
    return llama.describe_model(hf_config, [attention] * hf_config.num_layers, describe_mlps(hf_config))


def describe_mlps(hf_config: HfConfig, **changes: Any) -> list[MlpDescription]:
    """Returns the MLP of each layer: the first ones are dense. `changes`: fields of experts, if they are others."""
    experts = describe_experts(hf_config, hf_config.count("n_shared_experts", 1, least=0))
    experts = replace(experts, **changes)
    num_layers, num_dense = hf_config.num_layers, "first_k_dense_replace"
    first = min(num_layers, hf_config.count(num_dense, 1, least=0))
    return [*[llama.describe_dense_mlp(hf_config)] * first, *[experts] * (num_layers - first)]


def describe_experts(hf_config: HfConfig, num_shared: int) -> ExpertMlpDescription:
    size = hf_config.count("moe_intermediate_size")
    return ExpertMlpDescription(
        num_experts=hf_config.count("n_routed_experts"),
        num_chosen=hf_config.count("num_experts_per_tok"),
        size=size,
        is_renormalized=hf_config.flag("norm_topk_prob", False),
        score="sigmoid",
        has_correction=True,
        num_groups=hf_config.count("n_group", 1),
        num_chosen_groups=hf_config.count("topk_group", 1),
        scale=hf_config.number("routed_scaling_factor", 1.0),
        shared=DenseMlpDescription(size=num_shared * size, activation="silu_gated") if num_shared else None,
    )


list_sources = partial(llama.list_sources, mlp_sources=sources_with(NAMES))
FAMILY = qwen3_moe.FAMILY.like("Glm4MoeForCausalLM", "glm4_moe", describe, list_sources, defaults=DEFAULTS)
