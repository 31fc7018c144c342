"""What a GGUF architecture means: as config.json, and as tensors of a Hugging Face checkpoint.

The facts are those of llama.cpp's converter (`conversion/`) and models (`src/models/`). To add an architecture, add a
line to `ARCHITECTURES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.gguf import expert_configs as experts
from runtime.gguf import latent_configs as latents
from runtime.gguf import layer_names as names
from runtime.gguf import llama_configs as dense
from runtime.gguf import recurrent_configs as recurrent
from runtime.gguf import window_configs as windows
from runtime.gguf.configs import ModelFields, dense_llama_config, gpt2_config
from runtime.gguf.gemma4_config import gemma4_config


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture of GGUF files.

    `model_names` and `layer_names` map names in the file, without `blk.N.` and `.weight`, to those of a checkpoint; or
    names with their last part (`.weight`, `.scale`) or without one to whole ones. `{}` stands for the numbers of all
    experts, whose tensors the file has stacked. `interleaved` maps names whose rows have the halves of
    each head interleaved to the field of config.json with their number of heads. `has_whole_norms`: norms are larger by
    1 in the file.
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

    def like(
        self,
        hf_name: str,
        model_type: str,
        config: Callable[[ModelFields], dict[str, Any]] | None = None,
        layer_names: Mapping[str, str] | None = None,
        **others: Any,
    ) -> "Architecture":
        """Returns the architecture with this name that has everything else in common with this one."""
        changes = {"config": config or self.config, "layer_names": layer_names or self.layer_names, **others}
        return replace(self, hf_name=hf_name, model_type=model_type, **changes)


QWEN2 = Architecture(
    hf_name="Qwen2ForCausalLM",
    model_type="qwen2",
    model_names=names.LLAMA_MODEL,
    layer_names=names.LLAMA_LAYER,
)
QWEN3 = QWEN2.like("Qwen3ForCausalLM", "qwen3", layer_names=names.LLAMA_LAYER | names.QWEN3_NORMS)
HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
LLAMA = QWEN2.like("LlamaForCausalLM", "llama", interleaved=HEADS)
MIXTRAL_LAYER = names.LLAMA_ATTENTION | names.MIXTRAL_EXPERTS
MIXTRAL = LLAMA.like("MixtralForCausalLM", "mixtral", experts.mixtral_config, MIXTRAL_LAYER)
"""Files have the name of Llama, and a number of experts."""

GEMMA_LAYER = names.LLAMA_ATTENTION | names.NORMS_AFTER | {"ffn_norm": "pre_feedforward_layernorm"} | names.LLAMA_MLP
GEMMA2 = QWEN2.like("Gemma2ForCausalLM", "gemma2", windows.gemma2_config, GEMMA_LAYER, has_whole_norms=True)
GEMMA3_LAYER = GEMMA_LAYER | names.QWEN3_NORMS
DELTA_MLP, DELTA_EXPERTS = (names.GATED_DELTA_LAYER | mlp for mlp in (names.LLAMA_MLP, names.QWEN2_EXPERTS))
QWEN35 = QWEN2.like("Qwen3_5ForCausalLM", "qwen3_5_text", recurrent.qwen35_config, DELTA_MLP, has_whole_norms=True)
MAMBA2 = Architecture(
    hf_name="Mamba2ForCausalLM",
    model_type="mamba2",
    config=recurrent.mamba2_config,
    model_names=names.MAMBA2_MODEL,
    layer_names=names.MAMBA2_LAYER,
    layer_prefix="backbone.layers.",
)
NEMOTRON_H = MAMBA2.like(
    "NemotronHForCausalLM", "nemotron_h", recurrent.nemotron_h_config, names.NEMOTRON_H_LAYER, interleaved=HEADS
)
LFM2_MODEL = {"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"}
LFM2 = QWEN2.like("Lfm2ForCausalLM", "lfm2", recurrent.lfm2_config, names.LFM2_LAYER, model_names=LFM2_MODEL)
OLMO_LAYER = names.PROJECTIONS | names.QWEN3_NORMS | names.NORMS_AFTER | names.LLAMA_MLP
OLMO2 = QWEN2.like("Olmo2ForCausalLM", "olmo2", windows.olmo_config, OLMO_LAYER)
QWEN3_MOE_LAYER = names.LLAMA_ATTENTION | names.QWEN3_NORMS | names.QWEN3_EXPERTS
GLM4_MOE = QWEN3.like("Glm4MoeForCausalLM", "glm4_moe", experts.glm4_moe_config, names.GLM4_MOE_LAYER)
DEEPSEEK2 = QWEN2.like("DeepseekV3ForCausalLM", "deepseek_v3", latents.deepseek2_config, names.LATENT_LAYER)
ARCHITECTURES = {
    "llama": LLAMA,
    "glm4moe": GLM4_MOE,
    "dots1": GLM4_MOE.like("Dots1ForCausalLM", "dots1"),
    "ernie4_5-moe": QWEN2.like(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", experts.ernie4_5_moe_config, names.ERNIE_LAYER
    ),
    "granitemoe": LLAMA.like(
        "GraniteMoeForCausalLM",
        "granitemoe",
        experts.granite_moe_config,
        names.LLAMA_ATTENTION | names.GRANITE_EXPERTS,
    ),
    "granitehybrid": LLAMA.like(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        recurrent.granite_hybrid_config,
        names.GRANITE_HYBRID_LAYER,
    ),
    "mamba2": MAMBA2,
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "falcon-h1": QWEN2.like(
        "FalconH1ForCausalLM",
        "falcon_h1",
        recurrent.falcon_h1_config,
        names.FALCON_H1_LAYER,
        model_names=names.LLAMA_MODEL | {"output_norm": "model.final_layernorm"},
    ),
    "lfm2": LFM2,
    "lfm2moe": LFM2.like("Lfm2MoeForCausalLM", "lfm2_moe", recurrent.lfm2_moe_config),
    "olmoe": QWEN3.like("OlmoeForCausalLM", "olmoe", experts.olmoe_config, QWEN3_MOE_LAYER),
    "deepseek2": DEEPSEEK2,
    "mistral4": DEEPSEEK2,
    "deepseek32": DEEPSEEK2.like("DeepseekV32ForCausalLM", "deepseek_v32", latents.indexed_config),
    "glm-dsa": DEEPSEEK2.like("GlmMoeDsaForCausalLM", "glm_moe_dsa", latents.indexed_config),
    "minicpm3": DEEPSEEK2.like("MiniCPM3ForCausalLM", "minicpm3", latents.latent_config),
    "smollm3": LLAMA.like("SmolLM3ForCausalLM", "smollm3", dense.smollm3_config),
    "granite": LLAMA.like("GraniteForCausalLM", "granite", dense.granite_config),
    "mistral3": LLAMA.like("Ministral3ForCausalLM", "ministral3", dense.mistral3_config),
    "phi3": QWEN2.like("Phi3ForCausalLM", "phi3", dense.phi3_config, names.PHI3_LAYER),
    "glm4": QWEN2.like("Glm4ForCausalLM", "glm4", dense.glm4_config, names.GLM4_LAYER),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen2vl": QWEN2.like("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", dense.qwen2_vl_config),
    "qwen3vl": QWEN3.like("Qwen3VLForConditionalGeneration", "qwen3_vl_text", dense.qwen3_vl_config),
    "qwen3vlmoe": QWEN3.like(
        "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", experts.qwen3_vl_moe_config, QWEN3_MOE_LAYER
    ),
    "qwen2moe": QWEN2.like(
        "Qwen2MoeForCausalLM", "qwen2_moe", experts.qwen2_moe_config, names.LLAMA_ATTENTION | names.QWEN2_EXPERTS
    ),
    "qwen35": QWEN35,
    "qwen35moe": QWEN35.like("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", recurrent.qwen35_moe_config, DELTA_EXPERTS),
    "qwen3next": QWEN35.like("Qwen3NextForCausalLM", "qwen3_next", recurrent.qwen3_next_config, DELTA_EXPERTS),
    "qwen3moe": QWEN3.like("Qwen3MoeForCausalLM", "qwen3_moe", experts.qwen3_moe_config, QWEN3_MOE_LAYER),
    "gemma2": GEMMA2,
    "gemma3": GEMMA2.like("Gemma3ForCausalLM", "gemma3_text", windows.gemma3_config, GEMMA3_LAYER),
    "gemma4": GEMMA2.like(
        "Gemma4ForCausalLM",
        "gemma4_text",
        gemma4_config,
        GEMMA3_LAYER | names.GEMMA4_LAYER,
        model_names=names.GEMMA4_MODEL,
        has_whole_norms=False,
    ),
    "olmo2": OLMO2,
    "exaone4": OLMO2.like("Exaone4ForCausalLM", "exaone4", windows.exaone4_config),
    "cohere2": QWEN2.like(
        "Cohere2ForCausalLM",
        "cohere2",
        windows.cohere2_config,
        names.PROJECTIONS | {"attn_norm": "input_layernorm"} | names.LLAMA_MLP,
    ),
    "gpt-oss": QWEN2.like("GptOssForCausalLM", "gpt_oss", windows.gpt_oss_config, names.GPT_OSS_LAYER),
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
