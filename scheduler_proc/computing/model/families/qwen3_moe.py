"""Qwen3-MoE: Qwen3 with a mixture of experts in place of the MLP of most layers."""

from dataclasses import replace
from functools import partial

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import MlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import llama, qwen2, qwen3
from scheduler_proc.computing.model.families.experts import ExpertNames, sources_with


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config.choice("hidden_act", ["silu"], "silu")
    window = llama.fit_window(qwen2.read_window(hf_config), max_model_len)
    attention = replace(qwen3.describe_attention(hf_config), window=window)
    mlps = alternate(hf_config, describe_experts(hf_config))
    return llama.describe_model(hf_config, [attention] * len(mlps), mlps)


def describe_experts(hf_config: HfConfig) -> ExpertMlpDescription:
    return ExpertMlpDescription(
        num_experts=hf_config.optional_count("num_experts") or hf_config.count("num_local_experts"),
        num_chosen=hf_config.count("num_experts_per_tok"),
        size=hf_config.count("moe_intermediate_size"),
        is_renormalized=hf_config.flag("norm_topk_prob", False),
    )


def alternate(hf_config: HfConfig, experts: ExpertMlpDescription) -> list[MlpDescription]:
    """Returns the MLP of each layer: experts, or dense ones."""
    dense, step = hf_config.indices("mlp_only_layers"), hf_config.count("decoder_sparse_step", 1)
    return [
        llama.describe_dense_mlp(hf_config) if index in dense or (index + 1) % step else experts
        for index in range(hf_config.num_layers)
    ]


mlp_sources = sources_with(ExpertNames())
list_sources = partial(llama.list_sources, mlp_sources=mlp_sources)
FAMILY = llama.FAMILY.like("Qwen3MoeForCausalLM", "qwen3_moe", describe, list_sources)
