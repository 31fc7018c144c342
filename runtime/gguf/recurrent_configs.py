"""config.json of models in GGUF with recurrent layers; see configs.py."""

from collections.abc import Sequence
from typing import Any

from runtime.gguf.configs import ModelFields, llama_config
from runtime.gguf.expert_configs import SIGMOID
from runtime.gguf.llama_configs import granite_fields, with_axes

PERIOD = 4
"""By default, each layer of this number attends."""


def qwen35_config(fields: ModelFields) -> dict[str, Any]:
    """Value heads of one key head do not follow each other in the file, unless there is one for each."""
    fields.require("expert_count", 0)
    return _with_tiled_heads(with_axes(_hybrid_config(fields), fields))


def qwen35_moe_config(fields: ModelFields) -> dict[str, Any]:
    return _with_tiled_heads(with_axes(_hybrid_config(fields) | _experts(fields), fields))


def _with_tiled_heads(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"has_tiled_value_heads": config["linear_num_key_heads"] < config["linear_num_value_heads"]}


def qwen3_next_config(fields: ModelFields) -> dict[str, Any]:
    return _hybrid_config(fields) | _experts(fields)


def _experts(fields: ModelFields) -> dict[str, Any]:
    return {
        **fields.experts(),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": fields.count("expert_shared_feed_forward_length"),
    }


def _hybrid_config(fields: ModelFields) -> dict[str, Any]:
    layers, period = fields.layers(), fields.count("full_attention_interval", PERIOD)
    flags = fields.flags("attention.recurrent_layers", fields.num_layers(), period)
    kinds = ["linear_attention" if is_recurrent else "full_attention" for is_recurrent in flags]
    return {
        **llama_config(fields, rotates_parts=True),
        **_state_sizes(fields, DELTA_NAMES),
        **layers,
        "layer_types": kinds[: layers["num_hidden_layers"]],
    }


BAMBA_NAMES = "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"
MAMBA2_NAMES = "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"
NEMOTRON_H_NAMES = "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"
"""The sizes of Mamba blocks in config.json: heads, values per head, groups, state, taps of the convolution."""
DELTA_NAMES = (
    *("linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim"),
    "linear_conv_kernel_dim",
)
"""Likewise, of gated delta rules: value heads, their size, key heads, their size, taps."""


def _state_sizes(fields: ModelFields, names: Sequence[str]) -> dict[str, int]:
    heads = fields.count("ssm.time_step_rank")
    head_dim, groups = fields.count("ssm.inner_size") // heads, fields.count("ssm.group_count")
    sizes = heads, head_dim, groups, fields.count("ssm.state_size"), fields.count("ssm.conv_kernel")
    return dict(zip(names, sizes, strict=True))


def mamba2_config(fields: ModelFields) -> dict[str, Any]:
    return {
        **_state_sizes(fields, MAMBA2_NAMES),
        "hidden_size": fields.count("embedding_length"),
        "num_hidden_layers": fields.num_layers(),
        "max_position_embeddings": fields.count("context_length"),
        "layer_norm_epsilon": fields.number("attention.layer_norm_rms_epsilon"),
        "use_conv_bias": fields.has("blk.0.ssm_conv1d.bias"),
    }


def _kv_heads(fields: ModelFields) -> list[int]:
    """Returns the key/value heads of each layer, 0 for one without attention."""
    return fields.counts("attention.head_count_kv", fields.num_layers(), least=0)


def granite_hybrid_config(fields: ModelFields) -> dict[str, Any]:
    config, heads = granite_fields(fields, is_rotated=False), _kv_heads(fields)
    inner_size, hidden_size = fields.count("ssm.inner_size"), config["hidden_size"]
    if inner_size % hidden_size:
        raise fields.fault("ssm.inner_size", inner_size, f"it must be a multiple of {hidden_size}")
    num_experts = fields.whole("expert_count")
    return {
        **config,
        **_state_sizes(fields, BAMBA_NAMES),
        "mamba_conv_bias": 0 in heads and fields.has(f"blk.{heads.index(0)}.ssm_conv1d.bias"),
        "mamba_expand": inner_size // hidden_size,
        "layer_types": ["full_attention" if num_heads else "linear_attention" for num_heads in heads],
        "position_embedding_type": None,
        "intermediate_size": fields.count("feed_forward_length"),
        "shared_intermediate_size": config["intermediate_size"],
        "num_local_experts": num_experts,
        **({"num_experts_per_tok": fields.count("expert_used_count")} if num_experts else {}),
    }


def nemotron_h_config(fields: ModelFields) -> dict[str, Any]:
    config, layers = llama_config(fields, rotates_parts=True), fields.layers()
    num_layers = config["num_hidden_layers"]
    sizes = zip(_kv_heads(fields), fields.counts("feed_forward_length", num_layers, least=0), strict=True)
    mlp = "moe" if fields.number("expert_count", 0.0) else "mlp"
    kinds = ["full_attention" if heads else mlp if size else "linear_attention" for heads, size in sizes]
    return {
        **config,
        **_state_sizes(fields, NEMOTRON_H_NAMES),
        **({} if mlp == "mlp" else _nemotron_experts(fields)),
        **layers,
        "layers_block_type": kinds[: layers["num_hidden_layers"]],
        "layer_norm_epsilon": config["rms_norm_eps"],
        "use_conv_bias": any(fields.has(f"blk.{index}.ssm_conv1d.bias") for index in range(num_layers)),
    }


def _nemotron_experts(fields: ModelFields) -> dict[str, Any]:
    return {
        **fields.experts("n_routed_experts"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": fields.count("expert_shared_feed_forward_length"),
        "n_shared_experts": fields.require("expert_shared_count", 1),
        "norm_topk_prob": fields.require("expert_weights_norm", False, True),
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0),
        "n_group": fields.require("expert_group_count", 1),
        **({"moe_latent_size": fields.count("moe_latent_size")} if fields.has_key("moe_latent_size") else {}),
    }


def falcon_h1_config(fields: ModelFields) -> dict[str, Any]:
    """The weights of the file have been multiplied by the factors of config.json."""
    return {
        **llama_config(fields),
        **_state_sizes(fields, BAMBA_NAMES),
        "mamba_conv_bias": fields.has("blk.0.ssm_conv1d.bias"),
        "mamba_d_ssm": fields.count("ssm.inner_size"),
        "mamba_rms_norm": fields.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def lfm2_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("attention.sliding_window", 0)
    config = llama_config(fields)
    return {
        **config,
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": fields.count("shortconv.l_cache"),
        "layer_types": ["full_attention" if num_heads else "conv" for num_heads in _kv_heads(fields)],
    }


def lfm2_moe_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("expert_gating_func", SIGMOID)
    num_dense = fields.whole("leading_dense_block_count")
    return {
        **lfm2_config(fields),
        **fields.experts(),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "num_dense_layers": num_dense,
        "use_expert_bias": fields.has(f"blk.{num_dense}.exp_probs_b.bias"),
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0) or 1.0,
    }
