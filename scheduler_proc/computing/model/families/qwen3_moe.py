"""Qwen3-MoE: Qwen3 with a mixture of experts in place of the MLP of most layers."""

from dataclasses import dataclass, replace
from typing import ClassVar

from messages.errors import BootError
from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.description import MlpDescription, ModelDescription
from scheduler_proc.computing.model.families import llama, qwen2, qwen3
from scheduler_proc.computing.model.families.family import Source, linear_sources
from scheduler_proc.computing.model.parameters import Parameter, linear_parameters


@dataclass(frozen=True, kw_only=True)
class ExpertMlpDescription:
    """Gated experts of `size` inner values, of which a router chooses `num_chosen` for each token.

    A chosen expert's share is its probability among all experts; if `is_renormalized`, the shares add up to 1.
    """

    num_experts: int
    num_chosen: int
    size: int
    is_renormalized: bool
    block: ClassVar[str] = "expert_mlp"

    @property
    def room_sizes(self) -> tuple[int, int]:
        return 0, 0

    def divided(self, num_ranks: int) -> "ExpertMlpDescription":
        if num_ranks > 1:
            raise BootError(f"--tensor-parallel {num_ranks}: models with experts are not divided yet")
        return self

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        parameters = [Parameter(f"{layer}.router.weight", (self.num_experts, hidden_size), "router")]
        for expert in range(self.num_experts):
            name = f"{layer}.experts.{expert}"
            parameters += linear_parameters(f"{name}.in", 2 * self.size, hidden_size, has_bias=False, split=None)
            parameters += linear_parameters(f"{name}.out", hidden_size, self.size, has_bias=False, split=None)
        return parameters


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config.choice("hidden_act", ["silu"], "silu")
    num_layers = hf_config.count("num_hidden_layers", most=MAX_LAYERS)
    dense, step = hf_config.indices("mlp_only_layers"), hf_config.count("decoder_sparse_step", 1)
    experts = ExpertMlpDescription(
        num_experts=hf_config.optional_count("num_experts") or hf_config.count("num_local_experts"),
        num_chosen=hf_config.count("num_experts_per_tok"),
        size=hf_config.count("moe_intermediate_size"),
        is_renormalized=hf_config.flag("norm_topk_prob", False),
    )
    if experts.num_chosen > experts.num_experts:
        reason = f"there are {experts.num_experts} experts"
        raise hf_config.refuse("num_experts_per_tok", experts.num_chosen, reason)
    mlps = [
        llama.describe_dense_mlp(hf_config) if index in dense or (index + 1) % step else experts
        for index in range(num_layers)
    ]
    window = llama.fit_window(qwen2.read_window(hf_config), max_model_len)
    attention = replace(qwen3.describe_attention(hf_config), window=window)
    return llama.describe_model(hf_config, [attention] * num_layers, mlps)


def list_sources(model: ModelDescription) -> list[Source]:
    return llama.list_sources(model, _mlp_sources)


def _mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    if not isinstance(mlp, ExpertMlpDescription):
        return llama.dense_mlp_sources(name, layer, mlp, hidden)
    sources = linear_sources(f"{name}.gate", f"{layer}.router", mlp.num_experts, hidden, has_bias=False)
    for expert in range(mlp.num_experts):
        theirs, ours = f"{name}.experts.{expert}", f"{layer}.experts.{expert}"
        sources += [
            *linear_sources(f"{theirs}.gate_proj", f"{ours}.in", mlp.size, hidden, has_bias=False),
            *linear_sources(f"{theirs}.up_proj", f"{ours}.in", mlp.size, hidden, has_bias=False, first_row=mlp.size),
            *linear_sources(f"{theirs}.down_proj", f"{ours}.out", hidden, mlp.size, has_bias=False),
        ]
    return sources


FAMILY = replace(
    llama.FAMILY,
    architectures=("Qwen3MoeForCausalLM",),
    model_types=("qwen3_moe",),
    describe=describe,
    list_sources=list_sources,
)
