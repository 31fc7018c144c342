"""DeepSeek V2 and V2-Lite: experts chosen by a softmax, possibly of groups with the best experts."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import glm4_moe, latent, llama
from scheduler_proc.computing.model.families.deepseek_v3 import LATENTS

DEFAULTS = HfConfig(
    {**LATENTS, "first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2}
    | {"moe_intermediate_size": 1407, "topk_method": "greedy"}
)


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config.choice("moe_layer_freq", [1], 1)
    hf_config.choice("scoring_func", ["softmax"], "softmax")
    hf_config.refuse_flag("norm_topk_prob", "supported is false")
    has_groups = hf_config.choice("topk_method", ["greedy", "group_limited_greedy"]) != "greedy"
    groups = {} if has_groups else {"num_groups": 1, "num_chosen_groups": 1}
    own = {"score": "softmax", "has_correction": False, "num_best_of_group": 1, **groups}
    mlps = glm4_moe.describe_mlps(hf_config, **own)
    return llama.describe_model(hf_config, [latent.describe_attention(hf_config)] * len(mlps), mlps)


FAMILY = llama.FAMILY.like("DeepseekV2ForCausalLM", "deepseek_v2", describe, latent.list_sources, defaults=DEFAULTS)
