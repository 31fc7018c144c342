"""Granite 3 with experts (granitemoe), and with experts and an MLP of all tokens (granitemoeshared)."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, MlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import granite, llama
from scheduler_proc.computing.model.families.experts import ExpertNames, FusedExperts, expert_sources
from scheduler_proc.computing.model.families.family import Source, Stack, linear_sources

NAMES = ExpertNames(
    router="router.layer", fused=FusedExperts(gate_up="input_linear.weight", down="output_linear.weight")
)


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    model, shared = granite.describe(hf_config, max_model_len), hf_config.count("shared_intermediate_size", 0, least=0)
    experts = ExpertMlpDescription(
        num_experts=hf_config.count("num_local_experts"),
        num_chosen=hf_config.count("num_experts_per_tok", 2),
        size=hf_config.count("intermediate_size"),
        is_renormalized=True,
        shared=DenseMlpDescription(size=shared, activation="silu_gated") if shared else None,
    )
    return replace(model, layers=tuple(replace(layer, mlp=experts) for layer in model.layers))


def list_sources(model: ModelDescription) -> list[Source]:
    return llama.list_sources(model, mlp_sources)


def mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    """The shared MLP of experts has the names of the MLP that Granite 4 has without experts.

    GGUF files have its gates and ups apart.
    """
    if isinstance(mlp, ExpertMlpDescription):
        moe = name.replace(".mlp", ".block_sparse_moe")
        sources = expert_sources(moe, layer, replace(mlp, shared=None), hidden, NAMES)
        return sources + (mlp_sources(name, f"{layer}.shared", mlp.shared, hidden) if mlp.shared else [])
    assert isinstance(mlp, DenseMlpDescription)
    shared, into = name.replace(".mlp", ".shared_mlp"), f"{layer}.mlp_in.weight"
    gates, shape = Stack(f"{shared}.input_linear.weight", (1, mlp.in_size, hidden)), (mlp.size, hidden)
    return [
        Source(f"{shared}.gate_proj.weight", shape, into, others=(gates,)),
        Source(f"{shared}.up_proj.weight", shape, into, mlp.size, others=(replace(gates, first_row=mlp.size),)),
        *linear_sources(f"{shared}.output_linear", f"{layer}.mlp_out", hidden, mlp.size, has_bias=False),
    ]


FAMILY = llama.FAMILY.like(
    "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM", "granitemoe granitemoeshared", describe, list_sources
)
