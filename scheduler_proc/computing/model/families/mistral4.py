"""Mistral 4: latent attention whose queries grow with their position, and experts chosen by a softmax."""

import logging
from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import glm4_moe, latent, llama
from scheduler_proc.computing.model.families.rope import ORIGINAL

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
DEFAULTS = HfConfig(
    {"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 64}
    | {"n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 2048, "norm_topk_prob": True}
    | {"first_k_dense_replace": 0, "rope_parameters": ROPE}
)

log = logging.getLogger("sluice.mistral4")


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    attention, parameters = latent.describe_attention(hf_config), hf_config.section("rope_parameters") or HfConfig({})
    if growth := parameters.optional_number("llama_4_scaling_beta"):
        rope = replace(attention.rope, query_growth=growth, original_max_positions=parameters.count(ORIGINAL))
        attention = replace(attention, rope=rope)
    elif max_model_len > attention.rope.original_max_positions > 0:
        log.warning(
            "the model lacks llama_4_scaling_beta, by which queries grow with their position (GGUF files may not have "
            "it): contexts of up to %d tokens are computed exactly, longer ones are not",
            attention.rope.original_max_positions,
        )
    mlps = glm4_moe.describe_mlps(hf_config, score="softmax", has_correction=False)
    return llama.describe_model(hf_config, [attention] * len(mlps), mlps)


FAMILY = llama.FAMILY.like("Mistral4ForCausalLM", "mistral4", describe, latent.list_sources, defaults=DEFAULTS)
