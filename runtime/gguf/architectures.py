"""What a GGUF architecture means: as config.json, and as tensors of a Hugging Face checkpoint.

The facts are those of llama.cpp's converter (`conversion/`) and models (`src/models/`). To add an architecture, add a
line to `ARCHITECTURES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.gguf.configs import (
    ModelFields,
    dense_llama_config,
    gpt2_config,
)
from runtime.gguf.expert_configs import (
    ernie4_5_moe_config,
    glm4_moe_config,
    granite_moe_config,
    mixtral_config,
    olmoe_config,
    qwen2_moe_config,
    qwen3_moe_config,
)
from runtime.gguf.gemma4_config import gemma4_config
from runtime.gguf.layer_names import (
    ERNIE_CORRECTION,
    FALCON_H1_LAYER,
    FUSED_MLP,
    GATED_DELTA_LAYER,
    GEMMA4_LAYER,
    GPT_OSS_LAYER,
    GRANITE_EXPERTS,
    GRANITE_HYBRID_LAYER,
    LFM2_LAYER,
    LLAMA_ATTENTION,
    LLAMA_MLP,
    LLAMA_MODEL,
    MAMBA2_LAYER,
    MAMBA2_MODEL,
    MIXTRAL_EXPERTS,
    NEMOTRON_H_LAYER,
    NORMS_AFTER,
    PROJECTIONS,
    QWEN2_EXPERTS,
    QWEN3_EXPERTS,
    QWEN3_NORMS,
    SHARED_EXPERTS,
)
from runtime.gguf.llama_configs import (
    glm4_config,
    granite_config,
    mistral3_config,
    phi3_config,
    smollm3_config,
)
from runtime.gguf.recurrent_configs import (
    falcon_h1_config,
    granite_hybrid_config,
    lfm2_config,
    lfm2_moe_config,
    mamba2_config,
    nemotron_h_config,
    qwen3_next_config,
    qwen35_config,
    qwen35_moe_config,
)
from runtime.gguf.window_configs import (
    cohere2_config,
    exaone4_config,
    gemma2_config,
    gemma3_config,
    gpt_oss_config,
    olmo_config,
)


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
    model_names=LLAMA_MODEL,
    layer_names=LLAMA_ATTENTION | LLAMA_MLP,
)
QWEN3 = replace(QWEN2, hf_name="Qwen3ForCausalLM", model_type="qwen3", layer_names={**QWEN2.layer_names, **QWEN3_NORMS})
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
    config=mixtral_config,
    layer_names=LLAMA_ATTENTION | MIXTRAL_EXPERTS,
)
"""Files have the name of Llama, and a number of experts."""

GEMMA2 = replace(
    QWEN2,
    hf_name="Gemma2ForCausalLM",
    model_type="gemma2",
    config=gemma2_config,
    layer_names=LLAMA_ATTENTION | NORMS_AFTER | {"ffn_norm": "pre_feedforward_layernorm"} | LLAMA_MLP,
    has_whole_norms=True,
)
QWEN35 = replace(
    QWEN2,
    hf_name="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    config=qwen35_config,
    layer_names=GATED_DELTA_LAYER | LLAMA_MLP,
    has_whole_norms=True,
)
MAMBA2 = Architecture(
    hf_name="Mamba2ForCausalLM",
    model_type="mamba2",
    config=mamba2_config,
    model_names=MAMBA2_MODEL,
    layer_names=MAMBA2_LAYER,
    layer_prefix="backbone.layers.",
)
NEMOTRON_H = replace(
    MAMBA2,
    hf_name="NemotronHForCausalLM",
    model_type="nemotron_h",
    config=nemotron_h_config,
    layer_names=NEMOTRON_H_LAYER,
    interleaved=LLAMA.interleaved,
)
LFM2 = replace(
    QWEN2,
    hf_name="Lfm2ForCausalLM",
    model_type="lfm2",
    config=lfm2_config,
    model_names={"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"},
    layer_names=LFM2_LAYER,
)
OLMO2 = replace(
    QWEN2,
    hf_name="Olmo2ForCausalLM",
    model_type="olmo2",
    config=olmo_config,
    layer_names=PROJECTIONS | QWEN3_NORMS | NORMS_AFTER | LLAMA_MLP,
)
GLM4_MOE = replace(
    QWEN3,
    hf_name="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    config=glm4_moe_config,
    layer_names={
        **LLAMA_ATTENTION,
        "post_attention_norm": "post_attention_layernorm",
        **QWEN3_NORMS,
        **LLAMA_MLP,
        **SHARED_EXPERTS,
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
        config=ernie4_5_moe_config,
        layer_names=LLAMA_ATTENTION | LLAMA_MLP | SHARED_EXPERTS | {"exp_probs_b.bias": ERNIE_CORRECTION},
    ),
    "granitemoe": replace(
        LLAMA,
        hf_name="GraniteMoeForCausalLM",
        model_type="granitemoe",
        config=granite_moe_config,
        layer_names=LLAMA_ATTENTION | GRANITE_EXPERTS,
    ),
    "granitehybrid": replace(
        LLAMA,
        hf_name="GraniteMoeHybridForCausalLM",
        model_type="granitemoehybrid",
        config=granite_hybrid_config,
        layer_names=GRANITE_HYBRID_LAYER,
    ),
    "mamba2": MAMBA2,
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "falcon-h1": replace(
        QWEN2,
        hf_name="FalconH1ForCausalLM",
        model_type="falcon_h1",
        config=falcon_h1_config,
        model_names=LLAMA_MODEL | {"output_norm": "model.final_layernorm"},
        layer_names=FALCON_H1_LAYER,
    ),
    "lfm2": LFM2,
    "lfm2moe": replace(LFM2, hf_name="Lfm2MoeForCausalLM", model_type="lfm2_moe", config=lfm2_moe_config),
    "olmoe": replace(
        QWEN3,
        hf_name="OlmoeForCausalLM",
        model_type="olmoe",
        config=olmoe_config,
        layer_names=LLAMA_ATTENTION | QWEN3_NORMS | QWEN3_EXPERTS,
    ),
    "smollm3": replace(LLAMA, hf_name="SmolLM3ForCausalLM", model_type="smollm3", config=smollm3_config),
    "granite": replace(LLAMA, hf_name="GraniteForCausalLM", model_type="granite", config=granite_config),
    "mistral3": replace(LLAMA, hf_name="Ministral3ForCausalLM", model_type="ministral3", config=mistral3_config),
    "phi3": replace(
        QWEN2,
        hf_name="Phi3ForCausalLM",
        model_type="phi3",
        config=phi3_config,
        layer_names={
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            **FUSED_MLP,
        },
    ),
    "glm4": replace(
        QWEN2,
        hf_name="Glm4ForCausalLM",
        model_type="glm4",
        config=glm4_config,
        layer_names={
            **LLAMA_ATTENTION,
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            **FUSED_MLP,
        },
    ),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen2moe": replace(
        QWEN2,
        hf_name="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        config=qwen2_moe_config,
        layer_names=LLAMA_ATTENTION | QWEN2_EXPERTS,
    ),
    "qwen35": QWEN35,
    "qwen35moe": replace(
        QWEN35,
        hf_name="Qwen3_5MoeForCausalLM",
        model_type="qwen3_5_moe_text",
        config=qwen35_moe_config,
        layer_names=GATED_DELTA_LAYER | QWEN2_EXPERTS,
    ),
    "qwen3next": replace(
        QWEN35,
        hf_name="Qwen3NextForCausalLM",
        model_type="qwen3_next",
        config=qwen3_next_config,
        layer_names=GATED_DELTA_LAYER | QWEN2_EXPERTS,
    ),
    "qwen3moe": replace(
        QWEN3,
        hf_name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        config=qwen3_moe_config,
        layer_names=LLAMA_ATTENTION | QWEN3_NORMS | QWEN3_EXPERTS,
    ),
    "gemma2": GEMMA2,
    "gemma3": replace(
        GEMMA2,
        hf_name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        config=gemma3_config,
        layer_names={**GEMMA2.layer_names, **QWEN3_NORMS},
    ),
    "gemma4": replace(
        GEMMA2,
        hf_name="Gemma4ForCausalLM",
        model_type="gemma4_text",
        config=gemma4_config,
        model_names=LLAMA_MODEL
        | {
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        layer_names={**GEMMA2.layer_names, **QWEN3_NORMS, **GEMMA4_LAYER},
        has_whole_norms=False,
    ),
    "olmo2": OLMO2,
    "exaone4": replace(OLMO2, hf_name="Exaone4ForCausalLM", model_type="exaone4", config=exaone4_config),
    "cohere2": replace(
        QWEN2,
        hf_name="Cohere2ForCausalLM",
        model_type="cohere2",
        config=cohere2_config,
        layer_names=PROJECTIONS | {"attn_norm": "input_layernorm"} | LLAMA_MLP,
    ),
    "gpt-oss": replace(
        QWEN2, hf_name="GptOssForCausalLM", model_type="gpt_oss", config=gpt_oss_config, layer_names=GPT_OSS_LAYER
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
