"""Qwen3-VL, the language model: Qwen3 with positions of three axes, and parts of images' rows added after layers."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import qwen3
from scheduler_proc.computing.model.families.rope import with_axes

SECTIONS = 24, 20, 20
DEFAULT_TAPS = [8, 16, 24]
"""The layers of the encoder whose outputs are the features, by default."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    return with_images(qwen3.describe(hf_config, max_model_len), hf_config)


def with_images(model: ModelDescription, hf_config: HfConfig) -> ModelDescription:
    """Returns the model with what images need."""
    encoder, taps = hf_config.section("vision_config") or HfConfig({}), "deepstack_visual_indexes"
    default = encoder.indices(taps) if taps in encoder.names() else DEFAULT_TAPS
    num_taps = hf_config.count("num_deepstack_layers", len(default), most=len(model.layers), least=0)
    model = with_axes(model, hf_config, SECTIONS, is_interleaved=True)
    return replace(model, deepstack_layers=tuple(range(num_taps)))


FAMILY = qwen3.FAMILY.like("Qwen3VLForConditionalGeneration", "qwen3_vl_text", describe)
