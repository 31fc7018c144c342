"""Falcon-H1: Llama with a Mamba block next to the attention of each layer, and factors on most activations.

Factors of embeddings, scores of attention and logits are in our descriptions. Each of the others multiplies the inputs
or outputs of a linear layer: its weights are multiplied when they are loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, mamba2
from scheduler_proc.computing.model.families.family import RowFactors, Source, renamed
from scheduler_proc.computing.model.mamba_description import MambaDescription

DEFAULTS = HfConfig({"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "rms_norm_eps": 1e-5})
NAMES = {
    "post_attention_layernorm": "pre_ff_layernorm",
    "model.norm": "model.final_layernorm",
    ".mlp.": ".feed_forward.",
}


@dataclass(frozen=True, kw_only=True)
class FalconH1Description(ModelDescription):
    factors: Mapping[str, RowFactors]
    """By the last part of a linear layer's name in a checkpoint; those of all rows, unless they are 1."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    for bias in ("attention_bias", "mamba_proj_bias", "projectors_bias", "mlp_bias"):
        hf_config.refuse_flag(bias, "supported are linear layers without biases")
    model = llama.describe(hf_config, max_model_len)
    inner_size = hf_config.optional_count("mamba_d_ssm") or hf_config.count("mamba_expand", 2) * model.hidden_size
    has_norm = hf_config.flag("mamba_rms_norm", False)
    mamba = mamba2.describe_bamba(hf_config, inner_size, has_norm=has_norm)
    mamba = replace(mamba, norms_first=hf_config.flag("mamba_norm_before_gate", True))
    attention = model.find(AttentionDescription)[0]
    factor = hf_config.number("attention_in_multiplier", 1.0) ** 2 * hf_config.number("key_multiplier", 1.0)
    mixers = replace(attention, scale=attention.scale * factor), mamba
    layers = tuple(replace(layer, mixers=mixers) for layer in model.layers)
    scales = [hf_config.number(f"{name}_multiplier", 1.0) for name in ("embedding", "lm_head")]
    model = replace(model, layers=layers, embedding_scale=scales[0], logit_scale=scales[1])
    return FalconH1Description(**vars(model), factors=_read_factors(hf_config, mamba))


def _read_factors(hf_config: HfConfig, mamba: MambaDescription) -> Mapping[str, RowFactors]:
    hidden, groups_size = hf_config.count("hidden_size"), mamba.num_groups * mamba.state_size
    sizes = mamba.out_size, mamba.out_size, groups_size, groups_size, mamba.num_heads
    ssm_in, attention_in = (hf_config.number(f"{name}_in_multiplier", 1.0) for name in ("ssm", "attention"))
    parts, (gate, down) = _read_numbers(hf_config, "ssm_multipliers", 5), _read_numbers(hf_config, "mlp_multipliers", 2)
    factors: dict[str, RowFactors] = {
        "in_proj": tuple((ssm_in * factor, size) for factor, size in zip(parts, sizes, strict=True)),
        "out_proj": ((hf_config.number("ssm_out_multiplier", 1.0), hidden),),
        "o_proj": ((attention_in * hf_config.number("attention_out_multiplier", 1.0), hidden),),
        "gate_proj": ((gate, hf_config.count("intermediate_size")),),
        "down_proj": ((down, hidden),),
    }
    return {name: rows for name, rows in factors.items() if any(factor != 1 for factor, _ in rows)}


def _read_numbers(hf_config: HfConfig, name: str, count: int) -> list[float]:
    numbers = hf_config.numbers(name) or [1.0] * count
    if len(numbers) != count:
        raise hf_config.error(name, numbers, f"{count} positive numbers")
    return numbers


def list_sources(model: ModelDescription) -> list[Source]:
    assert isinstance(model, FalconH1Description)
    sources = renamed(llama.list_sources(model) + mamba2.mamba_sources(model, "mamba"), NAMES)
    return [replace(source, change=model.factors.get(source.name.split(".")[-2])) for source in sources]


FAMILY = llama.FAMILY.like("FalconH1ForCausalLM", "falcon_h1", describe, list_sources, defaults=DEFAULTS)
