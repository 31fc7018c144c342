"""Mixtral: Mistral with experts in place of the MLP of each layer."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import MlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.experts import ExpertNames, expert_sources
from scheduler_proc.computing.model.families.family import Source, renamed, with_other_names


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    experts = ExpertMlpDescription(
        num_experts=hf_config.count("num_local_experts"),
        num_chosen=hf_config.count("num_experts_per_tok", 2),
        size=hf_config.count("intermediate_size"),
        is_renormalized=True,
    )
    attention = llama.describe_attention(hf_config)
    window = llama.fit_window(hf_config.optional_count("sliding_window"), max_model_len)
    layers = [replace(attention, window=window)] * hf_config.num_layers
    return llama.describe_model(hf_config, layers, [experts] * len(layers))


def list_sources(model: ModelDescription) -> list[Source]:
    return llama.list_sources(model, _mlp_sources)


def _mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    """Fused experts are in a block of another name, with its router."""
    assert isinstance(mlp, ExpertMlpDescription)
    sources = expert_sources(name, layer, mlp, hidden, ExpertNames(gate="w1", up="w3", down="w2"))
    return with_other_names(renamed(sources, {".mlp.": ".block_sparse_moe."}), {".block_sparse_moe.": ".mlp."})


FAMILY = llama.FAMILY.like("MixtralForCausalLM", "mixtral", describe, list_sources)
