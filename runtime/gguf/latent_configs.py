"""config.json of models with multi-head latent attention in GGUF: `deepseek2` files hold several families."""

from typing import Any

from runtime.gguf.configs import MLP_SIZE, ModelFields, rope_parameters
from runtime.gguf.expert_configs import SIGMOID, routed_experts

GLM_VOCABULARY, GLM_LAYERS = 154_880, (47, 48)
"""GLM-4.7-Flash: some files of it lack how experts are scored, which means softmax in others."""

MISTRAL_SMALL_4 = {"num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32}
GROWTH, GROWTH_LENGTH = 0.1, 8192
"""How queries of that model grow with their position: no file has it."""


NUM_INDEXED = "attention.indexer.top_k"
"""In files of DeepSeek V3.2 and GLM-5, of which some of GLM-5 lack how experts are scored."""


def latent_config(fields: ModelFields) -> dict[str, Any]:
    rotated = fields.count("rope.dimension_count")
    lengths = ("attention.key_length", "attention.value_length")
    if fields.has_key(f"{lengths[0]}_mla"):  # those without are of the latent
        lengths = tuple(f"{length}_mla" for length in lengths)
    hidden_size, num_heads = fields.count("embedding_length"), fields.count("attention.head_count")
    fields.require("attention.causal", True)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": fields.count(next(filter(fields.has_key, MLP_SIZE), MLP_SIZE[0])),
        **{name: number for name, number in fields.layers().items() if number},
        "num_attention_heads": num_heads,
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope_parameters(fields, rotated),
        "hidden_act": "silu",
        "q_lora_rank": fields.whole("attention.q_lora_rank") or None,
        "kv_lora_rank": fields.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": max(0, fields.count(lengths[0]) - rotated),
        "v_head_dim": fields.count(lengths[1], hidden_size // num_heads or 1),
    }


def deepseek2_config(fields: ModelFields) -> dict[str, Any]:
    """`rope.scaling.yarn_log_multiplier` is a tenth of what other architectures have there."""
    config = latent_config(fields)
    rope, num_layers = config["rope_parameters"], config["num_hidden_layers"]
    if "mscale_all_dim" in rope:
        factor = rope["mscale_all_dim"] / 0.1
        config["rope_parameters"] = rope = {**rope, "mscale": factor, "mscale_all_dim": factor}
    if not fields.whole("expert_count"):
        return {**config, "architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    config |= routed_experts(fields)
    is_glm = num_layers in GLM_LAYERS and fields.vocabulary() == GLM_VOCABULARY
    default = SIGMOID if is_glm or fields.has_key(NUM_INDEXED) else 1
    if (fields.whole("expert_gating_func") or default) == SIGMOID:
        return config
    fields.require("expert_gating_func", 0, 1)
    if not config["norm_topk_prob"]:
        config["topk_method"] = "greedy" if config["n_group"] == 1 else "group_limited_greedy"
        return {**config, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    config["rope_parameters"] = {**rope, **_growth(fields, config)}
    return {**config, "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4"}


def indexed_config(fields: ModelFields) -> dict[str, Any]:
    """DeepSeek V3.2 and GLM-5: as V3, with an indexer."""
    config = deepseek2_config(fields)
    if "architectures" in config:
        raise fields.fault("expert_gating_func", fields.whole("expert_gating_func"), f"supported is {SIGMOID}")
    return config | {"index_topk": fields.count(NUM_INDEXED)}


def _growth(fields: ModelFields, config: dict[str, Any]) -> dict[str, float]:
    """Returns how queries grow with their position."""
    growth, length = fields.number("attention.temperature_scale", 0.0), fields.whole("attention.temperature_length")
    if not growth and MISTRAL_SMALL_4.items() <= config.items():
        growth, length = GROWTH, GROWTH_LENGTH
    if not growth:
        return {}
    return {"llama_4_scaling_beta": growth} | ({"original_max_position_embeddings": length} if length else {})
