"""Granite 4: Granite 3, dense or with experts; in models named H, most layers have Mamba in place of attention."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import LayerDescription, MixerDescription, ModelDescription
from scheduler_proc.computing.model.families import granite, granitemoe, llama, mamba2
from scheduler_proc.computing.model.families.family import Source
from scheduler_proc.computing.model.families.layer_kinds import read_kinds

ATTENTION, MAMBA = ("attention", "full_attention"), ("mamba", "linear_attention")
DEFAULTS = HfConfig(
    {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "num_local_experts": 8}
    | {"shared_intermediate_size": 1024, "rms_norm_eps": 1e-6}
)


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    if hf_config.count("num_local_experts", least=0):
        model = granitemoe.describe(hf_config, max_model_len)
    else:
        size = HfConfig({"intermediate_size": hf_config.count("shared_intermediate_size")})
        model = granite.describe(hf_config.overridden(size), max_model_len)
    kinds = read_kinds(hf_config, ["mamba"] * len(model.layers), (*ATTENTION, *MAMBA))
    mambas: tuple[MixerDescription, ...] = ()
    if set(kinds) & set(MAMBA):
        mambas = (mamba2.describe_bamba(hf_config, hf_config.count("mamba_expand", 2) * model.hidden_size),)
    is_rotated = hf_config.choice("position_embedding_type", ["rope", "nope"], "nope") == "rope"

    def adapt(kind: str, layer: LayerDescription) -> LayerDescription:
        if kind in MAMBA:
            return replace(layer, mixers=mambas)
        return layer if is_rotated else llama.with_attention(layer, rope=None)

    return replace(model, layers=tuple(map(adapt, kinds, model.layers)))


def list_sources(model: ModelDescription) -> list[Source]:
    return llama.list_sources(model, granitemoe.mlp_sources) + mamba2.mamba_sources(model, "mamba")


FAMILY = llama.FAMILY.like("GraniteMoeHybridForCausalLM", "granitemoehybrid", describe, list_sources, DEFAULTS)
