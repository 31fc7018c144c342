"""Granite 4 (micro, 1B, 350M): Granite under other names. Models with Mamba layers or experts are refused."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, MlpDescription, ModelDescription
from scheduler_proc.computing.model.families import granite, llama
from scheduler_proc.computing.model.families.family import Source, linear_sources

ATTENTION = {"attention", "full_attention"}


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    kinds = hf_config.texts("layer_types") or ["mamba"]
    if others := sorted(set(kinds) - ATTENTION):
        raise hf_config.refuse("layer_types", others, "supported are layers with attention alone")
    if num_experts := hf_config.count("num_local_experts", 8, least=0):
        raise hf_config.refuse("num_local_experts", num_experts, "supported is a dense MLP, with 0")
    hf_config.choice("position_embedding_type", ["rope"])
    size = HfConfig({"intermediate_size": hf_config.count("shared_intermediate_size", 1024)})
    return granite.describe(hf_config.overridden(size), max_model_len)


def list_sources(model: ModelDescription) -> list[Source]:
    return llama.list_sources(model, mlp_sources)


def mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    assert isinstance(mlp, DenseMlpDescription)
    shared = name.replace(".mlp", ".shared_mlp")
    return [
        *linear_sources(f"{shared}.input_linear", f"{layer}.mlp_in", mlp.in_size, hidden, has_bias=False),
        *linear_sources(f"{shared}.output_linear", f"{layer}.mlp_out", hidden, mlp.size, has_bias=False),
    ]


FAMILY = replace(
    llama.FAMILY,
    architectures=("GraniteMoeHybridForCausalLM",),
    model_types=("granitemoehybrid",),
    describe=describe,
    list_sources=list_sources,
)
