"""Rotary positions as config.json describes them, in both spellings: transformers 4's and 5's."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import NUM_AXES, MixerDescription, ModelDescription, RopeDescription

ORIGINAL = "original_max_position_embeddings"


def read_rope(hf_config: HfConfig) -> RopeDescription:
    """Reads `rope_theta` with `rope_scaling` (transformers 4) or `rope_parameters` (5)."""
    parameters = hf_config.section("rope_parameters") or hf_config.section("rope_scaling") or HfConfig({})
    return read_rope_parameters(parameters, hf_config)


def read_rope_parameters(parameters: HfConfig, hf_config: HfConfig) -> RopeDescription:
    """Reads the rope that `parameters` describe; what they lack is a field of `hf_config` or a default."""
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind == "su" or (kind == "yarn" and parameters.numbers("long_factor")):
        kind = "longrope"  # as the first checkpoints of Phi-3 call it
    if kind == "mrope":  # as the first checkpoints of Qwen2-VL call positions with three axes: see `with_axes`
        kind = "default"
    if kind not in SCALINGS:
        raise parameters.refuse("rope_type", kind, f"supported are {', '.join(SCALINGS)}")
    part = "partial_rotary_factor"
    theta = parameters.number("rope_theta", hf_config.number("rope_theta", 10_000.0))
    if theta <= 1:
        raise parameters.refuse("rope_theta", theta, "it must be greater than 1")
    rope = RopeDescription(theta=theta, part=parameters.number(part, hf_config.number(part, 1.0)))
    return SCALINGS[kind](rope, parameters, hf_config)


def with_axes(
    model: ModelDescription, hf_config: HfConfig, default: Sequence[int], *, is_interleaved: bool
) -> ModelDescription:
    """Returns the model, whose attention is rotated by positions with three axes, as `mrope_section` divides them.

    The sections follow one another or, if `is_interleaved`, those of lines and columns are each third pair of values
    from the second and the third one on, and the others are of time.
    """
    parameters = hf_config.section("rope_parameters") or hf_config.section("rope_scaling") or HfConfig({})
    sections = parameters.indices("mrope_section") or list(default)
    if len(sections) != NUM_AXES:
        raise parameters.refuse("mrope_section", sections, f"there must be {NUM_AXES} sections")

    def find_axis(pair: int) -> int:
        if is_interleaved:
            return pair % NUM_AXES if pair < NUM_AXES * sections[pair % NUM_AXES] else 0
        return bisect_right(list(accumulate(sections)), pair)

    def with_rope(mixer: MixerDescription) -> MixerDescription:
        if not isinstance(mixer, AttentionDescription) or mixer.rope is None:
            return mixer
        num_pairs = mixer.num_rotated // 2
        if not is_interleaved and sum(sections) != num_pairs:
            raise parameters.refuse("mrope_section", sections, f"their sum must be {num_pairs}")
        return replace(mixer, rope=replace(mixer.rope, axes=tuple(map(find_axis, range(num_pairs)))))

    return replace(
        model,
        layers=tuple(replace(layer, mixers=tuple(map(with_rope, layer.mixers))) for layer in model.layers),
    )


def _read_dynamic(rope: RopeDescription, parameters: HfConfig, hf_config: HfConfig) -> RopeDescription:
    original = hf_config.count("max_position_embeddings")
    return replace(rope, scaling="dynamic", factor=parameters.number("factor"), original_max_positions=original)


def _read_llama3(rope: RopeDescription, parameters: HfConfig, hf_config: HfConfig) -> RopeDescription:
    return replace(
        rope,
        scaling="llama3",
        factor=parameters.number("factor"),
        low_freq_factor=parameters.number("low_freq_factor"),
        high_freq_factor=parameters.number("high_freq_factor"),
        original_max_positions=_read_original(parameters, hf_config),
    )


def _read_yarn(rope: RopeDescription, parameters: HfConfig, hf_config: HfConfig) -> RopeDescription:
    original = _read_original(parameters, hf_config)
    factor = _read_factor(parameters, hf_config, original)
    mscale, mscale_all_dim = parameters.optional_number("mscale"), parameters.optional_number("mscale_all_dim")
    if mscale is None or mscale_all_dim is None:
        mscale, mscale_all_dim = 1.0, 0.0
    growth = 0.1 * math.log(max(factor, 1.0))
    default = (growth * mscale + 1.0) / (growth * mscale_all_dim + 1.0)
    return replace(
        rope,
        scaling="yarn",
        factor=factor,
        original_max_positions=original,
        attention_factor=parameters.number("attention_factor", default),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        has_whole_bounds=parameters.flag("truncate", True),
    )


def _read_longrope(rope: RopeDescription, parameters: HfConfig, hf_config: HfConfig) -> RopeDescription:
    original = _read_original(parameters, hf_config)
    attention_factor = parameters.optional_number("attention_factor")
    if attention_factor is None:
        factor = max(1.0, _read_factor(parameters, hf_config, original))
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return replace(
        rope,
        scaling="longrope",
        original_max_positions=original,
        attention_factor=attention_factor,
        short_factors=tuple(parameters.numbers("short_factor")),
        long_factors=tuple(parameters.numbers("long_factor")),
    )


def _read_original(parameters: HfConfig, hf_config: HfConfig) -> int:
    """Returns the context of the training before the scaling. Phi-3 has it outside of the parameters."""
    own = hf_config.optional_count(ORIGINAL) or parameters.optional_count(ORIGINAL)
    original = own or hf_config.count("max_position_embeddings")
    if original < 2:
        raise parameters.refuse(ORIGINAL, original, "it must be greater than 1")
    return original


def _read_factor(parameters: HfConfig, hf_config: HfConfig, original: int) -> float:
    factor = parameters.optional_number("factor")
    return hf_config.count("max_position_embeddings") / original if factor is None else factor


SCALINGS: dict[str, Callable[[RopeDescription, HfConfig, HfConfig], RopeDescription]] = {
    "default": lambda rope, *_: rope,
    "linear": lambda rope, parameters, _: replace(rope, scaling="linear", factor=parameters.number("factor")),
    "dynamic": _read_dynamic,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
    "proportional": lambda rope, parameters, _: replace(
        rope, scaling="proportional", factor=parameters.number("factor", 1.0)
    ),
}
"""By `rope_type`; the arguments are the rotary positions without scaling, their parameters and config.json."""
