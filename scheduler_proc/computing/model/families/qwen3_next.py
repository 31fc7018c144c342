"""Qwen3-Next: three of four layers are Gated DeltaNet, each fourth attends, with a gate on its output.

Its linears before the convolution have the outputs of one key head after another's.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import MlpDescription, ModelDescription
from scheduler_proc.computing.model.families import llama, qwen2_moe, qwen3_moe
from scheduler_proc.computing.model.families.family import Parts, Source, Stack, linear_sources
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, read_kinds
from scheduler_proc.computing.model.families.mtp import MtpNames, with_mtp
from scheduler_proc.computing.model.gated_delta_description import GatedDeltaDescription

RECURRENT = "linear_attention"
DEFAULTS = HfConfig({"head_dim": 256, "partial_rotary_factor": 0.25, "norm_topk_prob": True})
"""The values of fields that config.json may lack."""

MTP_NAMES = MtpNames(
    layer="mtp.layers.0.",
    final_norm="mtp.norm.",
    join="mtp.fc.weight",
    embedding_norm="mtp.pre_fc_norm_embedding.weight",
    hidden_norm="mtp.pre_fc_norm_hidden.weight",
)


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    experts = qwen2_moe.describe_experts(hf_config)
    return describe_hybrid(hf_config, qwen3_moe.alternate(hf_config, experts))


def describe_hybrid(hf_config: HfConfig, mlps: Sequence[MlpDescription]) -> ModelDescription:
    """Returns a model whose layers have these MLPs."""
    hf_config.choice("output_gate_type", ["silu", "swish"], "silu")  # two names of the activation of the gated norm
    hf_config.refuse_flag("attn_output_gate", "attention without a gate on its output is not supported", refused=False)
    norm = replace(llama.describe_norm(hf_config, hf_config.count("hidden_size")), is_zero_centered=True)
    attention = llama.describe_attention(hf_config, has_bias=hf_config.flag("attention_bias", False))
    qk_norm = replace(norm, size=attention.head_dim)
    attention = replace(attention, qk_norm=qk_norm, has_gate=True)
    recurrent, period = describe_delta(hf_config), hf_config.count("full_attention_interval", 4)
    default = [RECURRENT if index % period else WHOLE_CONTEXT for index in range(1, len(mlps) + 1)]
    kinds = read_kinds(hf_config, default, (RECURRENT, WHOLE_CONTEXT))
    mixers = [recurrent if kind == RECURRENT else attention for kind in kinds]
    return llama.describe_model(hf_config, mixers, mlps, norm)


def describe_delta(hf_config: HfConfig) -> GatedDeltaDescription:
    return GatedDeltaDescription(
        num_key_heads=hf_config.count("linear_num_key_heads", 16),
        num_value_heads=hf_config.count("linear_num_value_heads", 32),
        key_size=hf_config.count("linear_key_head_dim", 128),
        value_size=hf_config.count("linear_value_head_dim", 128),
        num_taps=hf_config.count("linear_conv_kernel_dim", 4, least=2),
        norm_eps=hf_config.number("rms_norm_eps", 1e-6),
        has_tiled_heads=hf_config.flag("has_tiled_value_heads", False),
    )


def _list_sources(model: ModelDescription) -> list[Source]:
    sources = llama.list_sources(model, qwen3_moe.mlp_sources, attention_sources=_attention_sources)
    for index, layer in enumerate(model.layers):
        if (delta := layer.find(GatedDeltaDescription)) is not None:
            block = f"model.layers.{index}.linear_attn"
            sources += _delta_sources(block, f"layers.{index}", delta, model.hidden_size)
    return sources


list_sources = with_mtp(_list_sources, MTP_NAMES)


def _attention_sources(name: str, layer: str, attention: AttentionDescription, hidden: int) -> list[Source]:
    """The rows of each query head are followed by those of its gate."""
    sources = llama.attention_sources(name, layer, attention, hidden)
    found, size = [source for source in sources if ".q_proj." not in source.name], attention.head_dim
    for kind, columns in [("weight", (hidden,)), ("bias", ())][: 1 + attention.has_qkv_bias]:
        parts, shape = Parts(attention.num_heads, size), (attention.num_heads, 2 * size, *columns)
        for part, target in enumerate(("qkv", "attention_gate")):
            stack = Stack(f"{name}.q_proj.{kind}", shape, part * size)
            found.append(Source("", (size, *columns), f"{layer}.{target}.{kind}", others=(stack,), parts=parts))
    return found


def _delta_sources(name: str, layer: str, delta: GatedDeltaDescription, hidden: int) -> list[Source]:
    num_heads, key_size, out_size = delta.num_value_heads, delta.key_size, delta.out_size
    keys = delta.num_key_heads * key_size
    values_per_key, heads_per_key = out_size // delta.num_key_heads, num_heads // delta.num_key_heads
    qkv = "in_proj_qkv", delta.conv_size
    parts = [
        _Part(key_size, *qkv, 0),
        _Part(key_size, *qkv, keys),
        _Part(values_per_key, *qkv, 2 * keys),
        _Part(values_per_key, "in_proj_z", out_size, 0),
    ]
    gates = [_Part(heads_per_key, "in_proj_b", num_heads, 0), _Part(heads_per_key, "in_proj_a", num_heads, 0)]
    return [
        *_split_sources(name, "in_proj_qkvz", f"{layer}.delta_in.weight", parts, (delta.num_key_heads, hidden)),
        *_split_sources(name, "in_proj_ba", f"{layer}.delta_gates.weight", gates, (delta.num_key_heads, hidden)),
        Source(f"{name}.conv1d.weight", (delta.conv_size, 1, delta.num_taps), f"{layer}.conv.weight"),
        Source(f"{name}.A_log", (num_heads,), f"{layer}.A_log"),
        Source(f"{name}.dt_bias", (num_heads,), f"{layer}.time_bias"),
        Source(f"{name}.norm.weight", (delta.value_size,), f"{layer}.delta_norm.weight"),
        *linear_sources(f"{name}.out_proj", f"{layer}.delta_out", hidden, out_size, has_bias=False),
    ]


class _Part(NamedTuple):
    """Rows of a linear: `num_rows` for each key head. Qwen3.5 has them from `first_row` on in a tensor `whole`."""

    num_rows: int
    whole: str
    num_in_whole: int
    first_row: int


def _split_sources(name: str, fused: str, target: str, parts: list[_Part], shape: tuple[int, int]) -> Iterator[Source]:
    """Yields the source of each part: rows of `fused`, which has all parts of a key head, or of other tensors."""
    num_heads, hidden = shape
    fused_shape, begin = (num_heads, sum(part.num_rows for part in parts), hidden), 0
    for part in parts:
        of_heads = Stack(f"{name}.{fused}.weight", fused_shape, begin)
        whole = Stack(f"{name}.{part.whole}.weight", (1, part.num_in_whole, hidden), part.first_row)
        heads = Parts(num_heads, part.num_rows)
        yield Source("", (part.num_rows, hidden), target, num_heads * begin, (of_heads, whole), heads)
        begin += part.num_rows


FAMILY = llama.FAMILY.like(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    describe,
    list_sources,
    DEFAULTS,
    ignored=re.compile(r"lm_head\.weight|mtp\..*"),
    mtp_tensor=MTP_NAMES.join,
)
