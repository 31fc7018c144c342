"""DeepSeek V3 and R1 (also Kimi-K2, Kanana-2, GigaChat3), GLM-4.7-Flash, and V3.2 and GLM-5 in short contexts."""

import re

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import MlpDescription, ModelDescription
from scheduler_proc.computing.model.families import glm4_moe, latent, llama
from scheduler_proc.computing.model.families.mtp import NEXTN, with_mtp

LATENTS = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128}
DEFAULTS = HfConfig(
    {**LATENTS, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "norm_topk_prob": True}
    | {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5}
)
GLM_DEFAULTS = HfConfig(
    {**LATENTS, "q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192, "norm_topk_prob": True}
    | {"n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8}
    | {"rms_norm_eps": 1e-5}
)
GLM_5_DEFAULTS = HfConfig(
    {**LATENTS, "q_lora_rank": 2048, "v_head_dim": 256, "qk_nope_head_dim": 192, "norm_topk_prob": True}
    | {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5}
    | {"rms_norm_eps": 1e-5, "first_k_dense_replace": 3}
)
SPARSE = ("DeepseekV32", "deepseek_v32"), ("GlmMoeDsa", "glm_moe_dsa")
"""DeepSeek V3.2 and GLM-5: an indexer chooses the tokens that a token attends to, all of them if there are few."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    defaults = GLM_DEFAULTS if _is_of("Glm4MoeLite", "glm4_moe_lite", hf_config) else DEFAULTS
    hf_config = (GLM_5_DEFAULTS if _is_of(*SPARSE[1], hf_config) else defaults).overridden(hf_config)
    num_indexed = hf_config.count("index_topk", 2048)
    if max_model_len > num_indexed and any(_is_of(*names, hf_config) for names in SPARSE):
        reason = f"contexts of up to {max_model_len} tokens need the indexer, which is not supported"
        raise hf_config.refuse("index_topk", num_indexed, f"{reason}; lower --max-model-len to {num_indexed}")
    hf_config.choice("moe_layer_freq", [1], 1)
    hf_config.choice("scoring_func", ["sigmoid"], "sigmoid")
    mlps = _describe_mlps(hf_config)
    return llama.describe_model(hf_config, [latent.describe_attention(hf_config)] * len(mlps), mlps)


def _is_of(prefix: str, model_type: str, hf_config: HfConfig) -> bool:
    architectures = hf_config.texts("architectures")
    return any(name.startswith(prefix) for name in architectures) or hf_config.text("model_type", "") == model_type


def _describe_mlps(hf_config: HfConfig) -> list[MlpDescription]:
    """Returns the MLP of each layer; `mlp_layer_types`, which transformers writes for GLM-4.7-Flash, may name it."""
    kinds = hf_config.texts("mlp_layer_types")
    if not kinds:
        return glm4_moe.describe_mlps(hf_config)
    if len(kinds) != hf_config.num_layers or set(kinds) - {"dense", "sparse"}:
        raise hf_config.refuse("mlp_layer_types", kinds, "it must name each layer's MLP: dense or sparse")
    experts = glm4_moe.describe_experts(hf_config, hf_config.count("n_shared_experts", 1, least=0))
    dense = llama.describe_dense_mlp(hf_config)
    return [experts if kind == "sparse" else dense for kind in kinds]


FAMILY = llama.FAMILY.like(
    "DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM DeepseekV32ForCausalLM GlmMoeDsaForCausalLM",
    "deepseek_v3 kimi_k2 glm4_moe_lite deepseek_v32 glm_moe_dsa",
    describe,
    with_mtp(latent.list_sources, NEXTN),
    ignored=re.compile(r"(model\.)?layers\.\d+\..*|lm_head\.weight"),  # the layer of multi-token prediction
    mtp_tensor=NEXTN.join,
)
