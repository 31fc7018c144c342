"""Layers of two kinds, of which one attends to a window of the last tokens, each kind with a rope of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import RopeDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.rope import read_rope, read_rope_parameters

WHOLE_CONTEXT, WINDOW = "full_attention", "sliding_attention"

Ropes = Mapping[str, RopeDescription | None]
"""By kind of layer."""


def read_kinds(
    hf_config: HfConfig, default: Sequence[str], known: Sequence[str] = (WHOLE_CONTEXT, WINDOW)
) -> Sequence[str]:
    """Returns the kind of each layer: `layer_types` or, without, `default`, which has all layers."""
    kinds = hf_config.texts("layer_types") or default
    if others := sorted(set(kinds) - set(known)):
        raise hf_config.refuse("layer_types", others, f"supported is {', '.join(known)}")
    if len(kinds) != len(default):
        raise hf_config.refuse("layer_types", kinds, f"there are {len(default)} layers")
    return kinds


def describe_kinds(
    hf_config: HfConfig, attention: AttentionDescription, max_model_len: int, period: int, ropes: Ropes
) -> list[AttentionDescription]:
    """Returns the attention of each layer; `period`: by default, each layer of this number has the whole context."""
    num_layers = hf_config.num_layers
    if not hf_config.texts("layer_types"):
        period = hf_config.count("sliding_window_pattern", period)
    kinds = read_kinds(
        hf_config, [WHOLE_CONTEXT if index % period == 0 else WINDOW for index in range(1, num_layers + 1)]
    )
    window = llama.fit_window(hf_config.count("sliding_window"), max_model_len) if WINDOW in kinds else None
    whole = replace(attention, rope=ropes[WHOLE_CONTEXT])
    of_kind = {WHOLE_CONTEXT: whole, WINDOW: replace(attention, rope=ropes[WINDOW], window=window)}
    return [of_kind[kind] for kind in kinds]


def read_ropes(hf_config: HfConfig) -> Ropes:
    """Reads a rope for each kind of layer: `rope_parameters` of each kind or, as of old, one rope for both kinds.

    The old one is not scaled in layers with a window, and may have another theta there (`rope_local_base_freq`).
    """
    both = hf_config.section("rope_parameters")
    theta = hf_config.number("rope_theta", 10_000.0)
    local = HfConfig({"rope_theta": hf_config.optional_number("rope_local_base_freq") or theta})
    whole = both and both.section(WHOLE_CONTEXT)
    if both is None or whole is None:
        return {WHOLE_CONTEXT: read_rope(hf_config), WINDOW: read_rope(local)}
    window = both.section(WINDOW) or HfConfig({})
    return {WHOLE_CONTEXT: read_rope_parameters(whole, hf_config), WINDOW: read_rope_parameters(window, local)}
