"""LFM2-MoE: LFM2 with experts chosen by sigmoids after its first layers."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.description import MlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import lfm2, llama
from scheduler_proc.computing.model.families.experts import ExpertNames, expert_sources
from scheduler_proc.computing.model.families.family import Source

NAMES = ExpertNames(correction="expert_bias")


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    experts = ExpertMlpDescription(
        num_experts=hf_config.count("num_experts", 32),
        num_chosen=hf_config.count("num_experts_per_tok", 4),
        size=hf_config.count("moe_intermediate_size"),
        is_renormalized=hf_config.flag("norm_topk_prob", True),
        score="sigmoid",
        has_correction=hf_config.flag("use_expert_bias", True),
        share_scale=hf_config.number("routed_scaling_factor", 1.0),
    )
    num_layers = hf_config.count("num_hidden_layers", most=MAX_LAYERS)
    num_dense = min(num_layers, hf_config.count("num_dense_layers", 2, least=0))
    dense = llama.describe_dense_mlp(hf_config)
    return lfm2.describe_layers(hf_config, [*[dense] * num_dense, *[experts] * (num_layers - num_dense)])


def list_sources(model: ModelDescription) -> list[Source]:
    return lfm2.list_sources(model, _mlp_sources)


def _mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    if isinstance(mlp, ExpertMlpDescription):
        return expert_sources(name, layer, mlp, hidden, NAMES)
    return llama.dense_mlp_sources(name, layer, mlp, hidden)


FAMILY = replace(
    llama.FAMILY,
    architectures=("Lfm2MoeForCausalLM",),
    model_types=("lfm2_moe",),
    describe=describe,
    list_sources=list_sources,
)
