"""What a GGUF architecture means: as config.json, and as tensors of a Hugging Face checkpoint.

The facts are those of llama.cpp's converter (`conversion/`) and models (`src/models/`). To add an architecture, add a
line to `ARCHITECTURES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.gguf import expert_configs, llama_configs, recurrent_configs, window_configs
from runtime.gguf import layer_names as names
from runtime.gguf.configs import ModelFields, dense_llama_config, gpt2_config
from runtime.gguf.gemma4_config import gemma4_config


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture of GGUF files.

    `model_names` and `layer_names` map names in the file, without `blk.N.` and `.weight`, to those of a checkpoint; or
    names with their last part (`.weight`, `.scale`) or without one to whole ones. `{}` is the number of an expert,
    whose tensors the file has stacked. `interleaved` maps names whose rows have the halves of each head interleaved to
    the field of config.json with their number of heads. `has_whole_norms`: norms are larger by 1 in the file.
    """

    hf_name: str
    model_type: str
    config: Callable[[ModelFields], dict[str, Any]] = dense_llama_config
    model_names: Mapping[str, str]
    layer_names: Mapping[str, str]
    layer_prefix: str = "model.layers."
    interleaved: Mapping[str, str] = field(default_factory=dict[str, str])
    transposed: frozenset[str] = frozenset()
    has_whole_norms: bool = False


QWEN2 = Architecture(
    hf_name="Qwen2ForCausalLM",
    model_type="qwen2",
    model_names=names.LLAMA_MODEL,
    layer_names=names.LLAMA_ATTENTION | names.LLAMA_MLP,
)
QWEN3 = replace(
    QWEN2, hf_name="Qwen3ForCausalLM", model_type="qwen3", layer_names={**QWEN2.layer_names, **names.QWEN3_NORMS}
)
LLAMA = replace(
    QWEN2,
    hf_name="LlamaForCausalLM",
    model_type="llama",
    interleaved={"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"},
)
MIXTRAL = replace(
    LLAMA,
    hf_name="MixtralForCausalLM",
    model_type="mixtral",
    config=expert_configs.mixtral_config,
    layer_names=names.LLAMA_ATTENTION | names.MIXTRAL_EXPERTS,
)
"""Files have the name of Llama, and a number of experts."""

GEMMA2 = replace(
    QWEN2,
    hf_name="Gemma2ForCausalLM",
    model_type="gemma2",
    config=window_configs.gemma2_config,
    layer_names=names.LLAMA_ATTENTION | names.NORMS_AFTER | {"ffn_norm": "pre_feedforward_layernorm"} | names.LLAMA_MLP,
    has_whole_norms=True,
)
QWEN35 = replace(
    QWEN2,
    hf_name="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    config=recurrent_configs.qwen35_config,
    layer_names=names.GATED_DELTA_LAYER | names.LLAMA_MLP,
    has_whole_norms=True,
)
MAMBA2 = Architecture(
    hf_name="Mamba2ForCausalLM",
    model_type="mamba2",
    config=recurrent_configs.mamba2_config,
    model_names=names.MAMBA2_MODEL,
    layer_names=names.MAMBA2_LAYER,
    layer_prefix="backbone.layers.",
)
NEMOTRON_H = replace(
    MAMBA2,
    hf_name="NemotronHForCausalLM",
    model_type="nemotron_h",
    config=recurrent_configs.nemotron_h_config,
    layer_names=names.NEMOTRON_H_LAYER,
    interleaved=LLAMA.interleaved,
)
LFM2 = replace(
    QWEN2,
    hf_name="Lfm2ForCausalLM",
    model_type="lfm2",
    config=recurrent_configs.lfm2_config,
    model_names={"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"},
    layer_names=names.LFM2_LAYER,
)
OLMO2 = replace(
    QWEN2,
    hf_name="Olmo2ForCausalLM",
    model_type="olmo2",
    config=window_configs.olmo_config,
    layer_names=names.PROJECTIONS | names.QWEN3_NORMS | names.NORMS_AFTER | names.LLAMA_MLP,
)
GLM4_MOE = replace(
    QWEN3,
    hf_name="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    config=expert_configs.glm4_moe_config,
    layer_names={
        **names.LLAMA_ATTENTION,
        "post_attention_norm": "post_attention_layernorm",
        **names.QWEN3_NORMS,
        **names.LLAMA_MLP,
        **names.SHARED_EXPERTS,
    },
)
ARCHITECTURES = {
    "llama": LLAMA,
    "glm4moe": GLM4_MOE,
    "dots1": replace(GLM4_MOE, hf_name="Dots1ForCausalLM", model_type="dots1"),
    "ernie4_5-moe": replace(
        QWEN2,
        hf_name="Ernie4_5_MoeForCausalLM",
        model_type="ernie4_5_moe",
        config=expert_configs.ernie4_5_moe_config,
        layer_names=names.LLAMA_ATTENTION
        | names.LLAMA_MLP
        | names.SHARED_EXPERTS
        | {"exp_probs_b.bias": names.ERNIE_CORRECTION},
    ),
    "granitemoe": replace(
        LLAMA,
        hf_name="GraniteMoeForCausalLM",
        model_type="granitemoe",
        config=expert_configs.granite_moe_config,
        layer_names=names.LLAMA_ATTENTION | names.GRANITE_EXPERTS,
    ),
    "granitehybrid": replace(
        LLAMA,
        hf_name="GraniteMoeHybridForCausalLM",
        model_type="granitemoehybrid",
        config=recurrent_configs.granite_hybrid_config,
        layer_names=names.GRANITE_HYBRID_LAYER,
    ),
    "mamba2": MAMBA2,
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "falcon-h1": replace(
        QWEN2,
        hf_name="FalconH1ForCausalLM",
        model_type="falcon_h1",
        config=recurrent_configs.falcon_h1_config,
        model_names=names.LLAMA_MODEL | {"output_norm": "model.final_layernorm"},
        layer_names=names.FALCON_H1_LAYER,
    ),
    "lfm2": LFM2,
    "lfm2moe": replace(
        LFM2, hf_name="Lfm2MoeForCausalLM", model_type="lfm2_moe", config=recurrent_configs.lfm2_moe_config
    ),
    "olmoe": replace(
        QWEN3,
        hf_name="OlmoeForCausalLM",
        model_type="olmoe",
        config=expert_configs.olmoe_config,
        layer_names=names.LLAMA_ATTENTION | names.QWEN3_NORMS | names.QWEN3_EXPERTS,
    ),
    "smollm3": replace(LLAMA, hf_name="SmolLM3ForCausalLM", model_type="smollm3", config=llama_configs.smollm3_config),
    "granite": replace(LLAMA, hf_name="GraniteForCausalLM", model_type="granite", config=llama_configs.granite_config),
    "mistral3": replace(
        LLAMA, hf_name="Ministral3ForCausalLM", model_type="ministral3", config=llama_configs.mistral3_config
    ),
    "phi3": replace(
        QWEN2,
        hf_name="Phi3ForCausalLM",
        model_type="phi3",
        config=llama_configs.phi3_config,
        layer_names={
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            **names.FUSED_MLP,
        },
    ),
    "glm4": replace(
        QWEN2,
        hf_name="Glm4ForCausalLM",
        model_type="glm4",
        config=llama_configs.glm4_config,
        layer_names={
            **names.LLAMA_ATTENTION,
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            **names.FUSED_MLP,
        },
    ),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen2moe": replace(
        QWEN2,
        hf_name="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        config=expert_configs.qwen2_moe_config,
        layer_names=names.LLAMA_ATTENTION | names.QWEN2_EXPERTS,
    ),
    "qwen35": QWEN35,
    "qwen35moe": replace(
        QWEN35,
        hf_name="Qwen3_5MoeForCausalLM",
        model_type="qwen3_5_moe_text",
        config=recurrent_configs.qwen35_moe_config,
        layer_names=names.GATED_DELTA_LAYER | names.QWEN2_EXPERTS,
    ),
    "qwen3next": replace(
        QWEN35,
        hf_name="Qwen3NextForCausalLM",
        model_type="qwen3_next",
        config=recurrent_configs.qwen3_next_config,
        layer_names=names.GATED_DELTA_LAYER | names.QWEN2_EXPERTS,
    ),
    "qwen3moe": replace(
        QWEN3,
        hf_name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        config=expert_configs.qwen3_moe_config,
        layer_names=names.LLAMA_ATTENTION | names.QWEN3_NORMS | names.QWEN3_EXPERTS,
    ),
    "gemma2": GEMMA2,
    "gemma3": replace(
        GEMMA2,
        hf_name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        config=window_configs.gemma3_config,
        layer_names={**GEMMA2.layer_names, **names.QWEN3_NORMS},
    ),
    "gemma4": replace(
        GEMMA2,
        hf_name="Gemma4ForCausalLM",
        model_type="gemma4_text",
        config=gemma4_config,
        model_names=names.LLAMA_MODEL
        | {
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        layer_names={**GEMMA2.layer_names, **names.QWEN3_NORMS, **names.GEMMA4_LAYER},
        has_whole_norms=False,
    ),
    "olmo2": OLMO2,
    "exaone4": replace(OLMO2, hf_name="Exaone4ForCausalLM", model_type="exaone4", config=window_configs.exaone4_config),
    "cohere2": replace(
        QWEN2,
        hf_name="Cohere2ForCausalLM",
        model_type="cohere2",
        config=window_configs.cohere2_config,
        layer_names=names.PROJECTIONS | {"attn_norm": "input_layernorm"} | names.LLAMA_MLP,
    ),
    "gpt-oss": replace(
        QWEN2,
        hf_name="GptOssForCausalLM",
        model_type="gpt_oss",
        config=window_configs.gpt_oss_config,
        layer_names=names.GPT_OSS_LAYER,
    ),
    "gpt2": Architecture(
        hf_name="GPT2LMHeadModel",
        model_type="gpt2",
        config=gpt2_config,
        model_names={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layer_names={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        layer_prefix="transformer.h.",
        transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
    ),
}
"""By general.architecture."""
