"""config.json of models with experts in GGUF."""

from typing import Any

from runtime.gguf.configs import ModelFields, llama_config
from runtime.gguf.llama_configs import granite_fields, with_parts

SIGMOID = 2
"""The number of llama.cpp."""


def mixtral_config(fields: ModelFields) -> dict[str, Any]:
    return llama_config(fields) | fields.experts("num_local_experts") | {"sliding_window": None}


def qwen2_moe_config(fields: ModelFields) -> dict[str, Any]:
    return {
        **qwen3_moe_config(fields),
        "shared_expert_intermediate_size": fields.count(
            "expert_shared_feed_forward_length", fields.count("feed_forward_length")
        ),
        "norm_topk_prob": False,
    }


def qwen3_moe_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("expert_group_count", 0, 1)
    experts = fields.experts()
    size = fields.count("feed_forward_length") // experts["num_experts_per_tok"]
    return {
        **llama_config(fields),
        **experts,
        "moe_intermediate_size": fields.count("expert_feed_forward_length", size),
        "norm_topk_prob": True,
    }


def qwen3_vl_moe_config(fields: ModelFields) -> dict[str, Any]:
    return with_parts(qwen3_moe_config(fields), fields)


def olmoe_config(fields: ModelFields) -> dict[str, Any]:
    return llama_config(fields) | fields.experts()


def granite_moe_config(fields: ModelFields) -> dict[str, Any]:
    return granite_fields(fields) | fields.experts("num_local_experts")


def glm4_moe_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("expert_gating_func", SIGMOID)
    return {
        **llama_config(fields, rotates_parts=True),
        **fields.layers(),
        **routed_experts(fields),
        "use_qk_norm": fields.has("blk.0.attn_q_norm.weight"),
    }


def routed_experts(fields: ModelFields) -> dict[str, Any]:
    """Returns the experts of a model whose first layers are dense, as in DeepSeek V3."""
    return {
        **fields.experts("n_routed_experts"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "n_shared_experts": fields.whole("expert_shared_count"),
        "first_k_dense_replace": fields.whole("leading_dense_block_count"),
        "routed_scaling_factor": fields.number("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": fields.require("expert_weights_norm", False, True),
        "n_group": fields.count("expert_group_count", 1),
        "topk_group": fields.count("expert_group_used_count", 1),
    }


def ernie4_5_moe_config(fields: ModelFields) -> dict[str, Any]:
    return {
        **llama_config(fields),
        "moe_num_experts": fields.count("expert_count"),
        "moe_k": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "moe_num_shared_experts": fields.whole("expert_shared_count"),
        "moe_layer_start_index": fields.whole("leading_dense_block_count"),
        "moe_layer_interval": fields.count("interleave_moe_layer_step", 1),
    }
