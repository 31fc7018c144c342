"""What families with multi-head latent attention have in common: fields of config.json and names of tensors."""

import math
from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import glm4_moe, llama
from scheduler_proc.computing.model.families.experts import sources_with
from scheduler_proc.computing.model.families.family import InterleavedHeads, Parts, Source, Stack, linear_sources
from scheduler_proc.computing.model.families.rope import read_rope
from scheduler_proc.computing.model.latent_attention_description import LatentAttentionDescription


def describe_attention(hf_config: HfConfig) -> LatentAttentionDescription:
    """YaRN also multiplies the scale of scores by m², where m follows from `mscale_all_dim` (DeepSeek-V2, 3.1.4).

    Norms of latents have an epsilon of 1e-6 whatever `rms_norm_eps` is, as in the code that was published with the
    weights of DeepSeek, MiniCPM3 and GLM-4.7-Flash.
    """
    rope = replace(read_rope(hf_config), part=1.0)
    plain_dim, rotated_dim = hf_config.count("qk_nope_head_dim"), hf_config.count("qk_rope_head_dim")
    parameters = hf_config.section("rope_parameters") or hf_config.section("rope_scaling") or HfConfig({})
    scale = (plain_dim + rotated_dim) ** -0.5
    if rope.scaling != "default":
        growth = 0.1 * (parameters.optional_number("mscale_all_dim") or 0.0) * math.log(max(rope.factor, 1.0)) + 1
        scale *= growth * growth
    num_heads = hf_config.count("num_attention_heads")
    return LatentAttentionDescription(
        num_heads=num_heads,
        rank=hf_config.count("kv_lora_rank"),
        plain_dim=plain_dim,
        rotated_dim=rotated_dim,
        value_dim=hf_config.count("v_head_dim", max(1, hf_config.count("hidden_size") // num_heads)),
        scale=scale,
        rope=rope,
        query_rank=hf_config.optional_count("q_lora_rank"),
        has_bias=hf_config.flag("attention_bias", False),
        has_neighbour_pairs=hf_config.flag("rope_interleave", True),
    )


mlp_sources = sources_with(glm4_moe.NAMES)


def list_sources(model: ModelDescription) -> list[Source]:
    sources = llama.list_sources(model, mlp_sources)
    for index, layer in enumerate(model.layers):
        if (attention := layer.find(LatentAttentionDescription)) is not None:
            block = f"model.layers.{index}.self_attn"
            sources += attention_sources(block, f"layers.{index}", attention, model.hidden_size)
    return sources


def attention_sources(name: str, layer: str, attention: LatentAttentionDescription, hidden: int) -> list[Source]:
    """Keys and values of heads are rows of one tensor or, in GGUF files, of two; that of keys is then transposed."""
    num_heads, rank, plain, value = attention.num_heads, attention.rank, attention.plain_dim, attention.value_dim
    size, has_bias, query = attention.query_size, attention.has_bias, f"{layer}.query"
    if attention.query_rank is None:
        queries, sources = linear_sources(f"{name}.q_proj", query, size, hidden, has_bias=False), list[Source]()
    else:
        inputs = attention.query_rank
        queries = linear_sources(f"{name}.q_b_proj", query, size, inputs, has_bias=False)
        sources = linear_sources(f"{name}.q_a_proj", f"{layer}.query_latent", inputs, hidden, has_bias)
        sources.append(Source(f"{name}.q_a_layernorm.weight", (inputs,), f"{layer}.query_norm.weight"))
    latents = f"{name}.kv_a_proj_with_mqa", f"{layer}.latent", attention.latent_size, hidden
    interleaved = [(queries, num_heads, plain), (linear_sources(*latents, has_bias), 1, rank)]
    for its_sources, heads, first in interleaved:
        order = InterleavedHeads(heads, attention.rotated_dim, first=first) if attention.has_neighbour_pairs else None
        sources += [replace(source, change=order) for source in its_sources]
    both = Stack(f"{name}.kv_b_proj.weight", (num_heads, plain + value, rank))
    for kind, shape, ours in (
        ("k", (rank, plain), replace(both, num_turned=plain)),
        ("v", (value, rank), replace(both, first_row=plain)),
    ):
        own, target = Stack(f"{name}.{kind}_b_proj.weight", (num_heads, *shape)), {"k": "keys", "v": "values"}[kind]
        parts = Parts(num_heads, shape[0])
        sources.append(Source("", shape, f"{layer}.latent_{target}.weight", others=(own, ours), parts=parts))
    return [
        *sources,
        Source(f"{name}.kv_a_layernorm.weight", (rank,), f"{layer}.latent_norm.weight"),
        *linear_sources(f"{name}.o_proj", f"{layer}.attention_out", hidden, attention.out_size, has_bias),
    ]
