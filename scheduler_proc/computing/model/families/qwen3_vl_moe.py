"""Qwen3-VL-MoE, the language model: Qwen3-MoE with what images need, whose experts have transposed weights in files."""

from functools import partial

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, qwen3_moe, qwen3_vl
from scheduler_proc.computing.model.families.experts import ExpertNames, FusedExperts, sources_with

mlp_sources = sources_with(ExpertNames(fused=FusedExperts(is_transposed=True)))


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    own = HfConfig({"norm_topk_prob": True})  # transformers does not read the field
    return qwen3_vl.with_images(qwen3_moe.describe(hf_config.overridden(own), max_model_len), hf_config)


list_sources = partial(llama.list_sources, mlp_sources=mlp_sources)
FAMILY = qwen3_moe.FAMILY.like("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", describe, list_sources)
