"""Mamba-2: each layer has a Mamba block alone. No layer has K and V, and config.json gives no longest context."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.family import Family, Source, linear_sources, renamed
from scheduler_proc.computing.model.mamba_description import VECTORS, MambaDescription

DEFAULTS = HfConfig({"num_heads": 128, "head_dim": 64, "state_size": 128})
NAMES: Mapping[str, str] = {
    "model.embed_tokens": "backbone.embeddings",
    "model.layers": "backbone.layers",
    "model.norm": "backbone.norm_f",
    "input_layernorm": "norm",
}
"""Parts of names in our lists of sources, and in checkpoints."""

TENSORS = dict(zip(VECTORS, ("A_log", "D", "dt_bias"), strict=True))


class MambaFields(NamedTuple):
    """The names of a Mamba block's fields in config.json; by default, those of Mamba-2."""

    num_heads: str = "num_heads"
    head_dim: str = "head_dim"
    num_groups: str = "n_groups"
    state_size: str = "state_size"
    num_taps: str = "conv_kernel"
    has_conv_bias: str = "use_conv_bias"
    has_bias: str = "use_bias"


BAMBA_FIELDS = MambaFields(
    *("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    *("mamba_conv_bias", "mamba_proj_bias"),
)


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config = with_eps(DEFAULTS.overridden(hf_config), "layer_norm_epsilon")
    norm = llama.describe_norm(hf_config, hf_config.count("hidden_size"))
    layer = LayerDescription(mixers=(describe_mamba(hf_config, MambaFields()),), attention_norm=norm)
    return llama.describe_layers(hf_config, [layer] * hf_config.num_layers, norm)


def with_eps(hf_config: HfConfig, name: str) -> HfConfig:
    """Returns config.json with the epsilon of norms under its usual name."""
    return hf_config.overridden(HfConfig({"rms_norm_eps": hf_config.number(name, 1e-5)}))


def describe_mamba(hf_config: HfConfig, fields: MambaFields, *, has_norm: bool = True) -> MambaDescription:
    hf_config.choice("hidden_act", ["silu"], "silu")
    return MambaDescription(
        num_heads=hf_config.count(fields.num_heads),
        head_dim=hf_config.count(fields.head_dim),
        num_groups=hf_config.count(fields.num_groups, 8),
        state_size=hf_config.count(fields.state_size),
        num_taps=hf_config.count(fields.num_taps, 4, most=8, least=2),
        norm_eps=hf_config.number("rms_norm_eps", 1e-5),
        has_norm=has_norm,
        has_conv_bias=hf_config.flag(fields.has_conv_bias, True),
        has_bias=hf_config.flag(fields.has_bias, False),
        time_limits=hf_config.limits("time_step_limit"),
    )


def describe_bamba(hf_config: HfConfig, inner_size: int, *, has_norm: bool = True) -> MambaDescription:
    """As in Bamba and its descendants: the heads share `inner_size`."""
    num_heads = hf_config.count("mamba_n_heads")
    if inner_size % num_heads:
        raise hf_config.refuse("mamba_n_heads", num_heads, f"it must divide the {inner_size} values of all heads")
    head_dim = HfConfig({"mamba_d_head": inner_size // num_heads})
    return describe_mamba(hf_config.overridden(head_dim), BAMBA_FIELDS, has_norm=has_norm)


def list_sources(model: ModelDescription) -> list[Source]:
    return renamed(llama.list_sources(model) + mamba_sources(model, "mixer"), NAMES)


def mamba_sources(model: ModelDescription, name: str) -> list[Source]:
    """Returns the sources of all Mamba blocks; `name` is theirs within a layer."""
    sources: list[Source] = []
    for index, description in enumerate(model.layers):
        mamba, theirs, layer = description.find(MambaDescription), f"model.layers.{index}.{name}", f"layers.{index}"
        if mamba is None:
            continue
        hidden, size, conv = model.hidden_size, mamba.conv_size, f"{layer}.conv"
        sources += [
            *linear_sources(f"{theirs}.in_proj", f"{layer}.mamba_in", mamba.in_size, hidden, mamba.has_bias),
            *linear_sources(f"{theirs}.out_proj", f"{layer}.mamba_out", hidden, mamba.out_size, mamba.has_bias),
            Source(f"{theirs}.conv1d.weight", (size, 1, mamba.num_taps), f"{conv}.weight"),
            *([Source(f"{theirs}.conv1d.bias", (size,), f"{conv}.bias")] if mamba.has_conv_bias else ()),
            *(Source(f"{theirs}.{TENSORS[key]}", (mamba.num_heads,), f"{layer}.mamba_{key}") for key in VECTORS),
        ]
        if mamba.has_norm:
            sources.append(Source(f"{theirs}.norm.weight", (mamba.out_size,), f"{layer}.mamba_norm.weight"))
    return sources


FAMILY = Family(
    architectures=("Mamba2ForCausalLM",),
    model_types=("mamba2",),
    describe=describe,
    list_sources=list_sources,
    prefix="backbone.",
    ignored=re.compile(r"lm_head\.weight"),
)
