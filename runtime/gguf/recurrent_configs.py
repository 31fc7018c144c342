"""config.json of models in GGUF with recurrent layers; see configs.py."""

from typing import Any

from runtime.gguf.configs import ModelFields, llama_config

PERIOD = 4
"""By default, each layer of this number attends."""


def qwen35_config(fields: ModelFields) -> dict[str, Any]:
    """Value heads of one key head do not follow each other in the file, unless there is one for each."""
    fields.require("expert_count", 0)
    config = _hybrid_config(fields)
    return config | {"has_tiled_value_heads": config["linear_num_key_heads"] < config["linear_num_value_heads"]}


def qwen35_moe_config(fields: ModelFields) -> dict[str, Any]:
    config = _hybrid_config(fields) | _experts(fields)
    return config | {"has_tiled_value_heads": config["linear_num_key_heads"] < config["linear_num_value_heads"]}


def qwen3_next_config(fields: ModelFields) -> dict[str, Any]:
    return _hybrid_config(fields) | _experts(fields) | {"norm_topk_prob": True}


def _experts(fields: ModelFields) -> dict[str, Any]:
    return {
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": fields.count("expert_shared_feed_forward_length"),
    }


def _hybrid_config(fields: ModelFields) -> dict[str, Any]:
    """The file may have layers that predict further tokens, after those of the model."""
    config = llama_config(fields, rotates_parts=True)
    num_all, num_nextn = config["num_hidden_layers"], int(fields.number("nextn_predict_layers", 0.0))
    flags = fields.flags("attention.recurrent_layers", num_all, fields.count("full_attention_interval", PERIOD))
    kinds = ["linear_attention" if is_recurrent else "full_attention" for is_recurrent in flags]
    num_values = fields.count("ssm.time_step_rank")
    return {
        **config,
        "num_hidden_layers": num_all - num_nextn,
        "num_nextn_predict_layers": num_nextn,
        "layer_types": kinds[: num_all - num_nextn],
        "linear_num_key_heads": fields.count("ssm.group_count"),
        "linear_num_value_heads": num_values,
        "linear_key_head_dim": fields.count("ssm.state_size"),
        "linear_value_head_dim": fields.count("ssm.inner_size") // num_values,
        "linear_conv_kernel_dim": fields.count("ssm.conv_kernel"),
    }
