"""Qwen2-VL and Qwen2.5-VL, the language models: Qwen2 with positions of three axes."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import qwen2
from scheduler_proc.computing.model.families.rope import with_axes

SECTIONS = 16, 24, 24


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    return with_axes(qwen2.describe(hf_config, max_model_len), hf_config, SECTIONS, is_interleaved=False)


FAMILY = qwen2.FAMILY.like(
    "Qwen2_5_VLForConditionalGeneration Qwen2VLForConditionalGeneration",
    "qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text",
    describe,
)
