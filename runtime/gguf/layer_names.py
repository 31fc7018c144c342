"""Names of tensors in GGUF files, without `blk.N.` and `.weight`, and those of a Hugging Face checkpoint."""

LLAMA_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
LLAMA_ATTENTION = PROJECTIONS | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def mlp_names(
    block: str, end: str = "", parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> dict[str, str]:
    """Returns the names of an MLP's gate, up and down, which the file has with this `end`.

    `block` begins their names in a checkpoint, and `parts` are their last parts there.
    """
    return {f"ffn_{ours}{end}": f"{block}.{part}" for ours, part in zip(("gate", "up", "down"), parts, strict=True)}


LLAMA_MLP = mlp_names("mlp")
LLAMA_LAYER = LLAMA_ATTENTION | LLAMA_MLP
FUSED_MLP = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
QWEN3_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
QWEN3_EXPERTS = {"ffn_gate_inp": "mlp.gate", **mlp_names("mlp.experts.{}", "_exps")}
QWEN2_EXPERTS = {
    **QWEN3_EXPERTS,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **mlp_names("mlp.shared_expert", "_shexp"),
}
SHARED_EXPERTS = {
    **QWEN3_EXPERTS,
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    **mlp_names("mlp.shared_experts", "_shexp"),
}
ERNIE_CORRECTION = "mlp.moe_statics.e_score_correction_bias"
ERNIE_LAYER = LLAMA_LAYER | SHARED_EXPERTS | {"exp_probs_b.bias": ERNIE_CORRECTION}
GLM4_MOE_LAYER = LLAMA_LAYER | QWEN3_NORMS | SHARED_EXPERTS | {"post_attention_norm": "post_attention_layernorm"}
VECTORS = ERNIE_CORRECTION, "mlp.shared_expert_gate.weight"
"""Ends of names: matrices of one row, which the file has as vectors."""

MATRICES = "A_log", ".D", "mixer.norm.weight", "mamba.norm.weight"
"""Likewise: vectors, which the file has as matrices."""

CONVOLUTION = "conv1d.weight", "conv.conv.weight"
"""Likewise: [channels, 1, taps], which the file has as [channels, taps]."""

GATED_DELTA_LAYER = {
    **PROJECTIONS,
    **QWEN3_NORMS,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
}
"""The layer after the last one is that of the head of multi-token prediction."""

LATENT_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "attn_output": "self_attn.o_proj",
    **LLAMA_MLP,
    **SHARED_EXPERTS,
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
}
"""Files from before April 2025, and MiniCPM3's, have keys and values in one tensor."""

GPT_OSS_LAYER = PROJECTIONS | {
    "attn_norm": "input_layernorm",
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    **QWEN3_EXPERTS,
    "ffn_gate_inp": "mlp.router",
}
NUMBERED = ("w1", "w3", "w2")
MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    **mlp_names("block_sparse_moe.experts.{}", "_exps", NUMBERED),
}
PHI3_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    **FUSED_MLP,
}
GLM4_LAYER = {
    **LLAMA_ATTENTION,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    **FUSED_MLP,
}
GEMMA4_MODEL = LLAMA_MODEL | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
GEMMA4_LAYER = {
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_gate_exps": "experts.{}.gate_proj",
    "ffn_up_exps": "experts.{}.up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}


def mamba_names(block: str) -> dict[str, str]:
    """`block`: the name of a layer's Mamba block in a checkpoint."""
    names = {"in": "in_proj", "conv1d": "conv1d", "a": "A_log", "d": "D", "dt.bias": "dt_bias", "norm": "norm"}
    return {f"ssm_{name}": f"{block}.{theirs}" for name, theirs in {**names, "out": "out_proj"}.items()}


GRANITE_EXPERTS = {
    **{name: theirs.replace("mlp.", "block_sparse_moe.") for name, theirs in QWEN3_EXPERTS.items()},
    "ffn_gate_inp": "block_sparse_moe.router.layer",
}
GRANITE_MLP = ("gate_proj", "up_proj", "output_linear")
GRANITE_HYBRID_LAYER = {
    **LLAMA_ATTENTION,
    **mamba_names("mamba"),
    **GRANITE_EXPERTS,
    **mlp_names("shared_mlp", parts=GRANITE_MLP),
    **mlp_names("shared_mlp", "_shexp", GRANITE_MLP),
}
"""Without experts the shared MLP has no suffix."""

MAMBA2_MODEL = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
MAMBA2_LAYER = {"attn_norm": "norm", **mamba_names("mixer")}
NEMOTRON_H_LAYER = {
    name: theirs.replace("mlp.", "mixer.").replace("self_attn.", "mixer.")
    for name, theirs in {**PROJECTIONS, **LLAMA_MLP, **SHARED_EXPERTS}.items()
} | MAMBA2_LAYER
FALCON_H1_LAYER = {
    **PROJECTIONS,
    **mamba_names("mamba"),
    "attn_norm": "input_layernorm",
    "ffn_norm": "pre_ff_layernorm.weight",
    **mlp_names("feed_forward"),
}
LFM2_LAYER = {
    **PROJECTIONS,
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "exp_probs_b.bias": "feed_forward.expert_bias",
    **{name: theirs.replace("block_sparse_moe.", "feed_forward.") for name, theirs in MIXTRAL_EXPERTS.items()},
    **mlp_names("feed_forward", parts=NUMBERED),
}
