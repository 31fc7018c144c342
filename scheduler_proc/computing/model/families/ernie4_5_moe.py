"""Ernie 4.5 with experts: some layers are dense, and a learned correction is added to the scores of experts.

In its checkpoints neighbouring rows of query and key are rotated together; they are loaded in our order.
"""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, MlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import glm4, llama
from scheduler_proc.computing.model.families.experts import ExpertNames, expert_sources
from scheduler_proc.computing.model.families.family import Source

DEFAULTS = HfConfig({"rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True})
NAMES = ExpertNames(shared="shared_experts", correction="moe_statics.e_score_correction_bias")


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config.refuse_flag("use_bias", "biases are not supported")
    size, num_shared = hf_config.count("moe_intermediate_size"), hf_config.count("moe_num_shared_experts", 2, least=0)
    dense = llama.describe_dense_mlp(hf_config)
    experts = ExpertMlpDescription(
        num_experts=hf_config.count("moe_num_experts"),
        num_chosen=hf_config.count("moe_k", 6),
        size=size,
        is_renormalized=True,
        has_correction=True,
        shared=DenseMlpDescription(size=num_shared * size, activation="silu_gated") if num_shared else None,
    )
    num_layers = hf_config.num_layers
    mlps = [experts if index in _expert_layers(hf_config) else dense for index in range(num_layers)]
    return llama.describe_model(hf_config, [llama.describe_attention(hf_config)] * num_layers, mlps)


def _expert_layers(hf_config: HfConfig) -> range:
    """Returns the numbers of the layers with experts; an end of -1 is the last layer."""
    first, step = hf_config.count("moe_layer_start_index", 1, least=0), hf_config.count("moe_layer_interval", 1)
    last = hf_config.count("moe_layer_end_index", -1, least=-1)
    last = hf_config.count("num_hidden_layers") - 1 if last < 0 else last
    return range(first + -(first + 1) % step, last + 1, step)


def list_sources(model: ModelDescription) -> list[Source]:
    return glm4.with_interleaved_heads(llama.list_sources(model, _mlp_sources), model)


def _mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    """The correction is a row in the checkpoint."""
    if not isinstance(mlp, ExpertMlpDescription):
        return llama.dense_mlp_sources(name, layer, mlp, hidden)
    shape = (1, mlp.num_experts)
    return [
        replace(source, shape=shape, others=(f"{name}.gate.{NAMES.correction}",), change="transposed")
        if source.name.endswith(NAMES.correction)
        else source
        for source in expert_sources(name, layer, mlp, hidden, NAMES)
    ]


FAMILY = llama.FAMILY.like("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", describe, list_sources, defaults=DEFAULTS)
