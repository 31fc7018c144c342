"""ModernBERT: an encoder with norms before blocks, rotary positions, and a window in most layers."""

import re
from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import (
    ClassifierDescription,
    DenseMlpDescription,
    LayerDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.model.families.bert import TASKS, describe_attention
from scheduler_proc.computing.model.families.family import Family, Source, embedding_source, linear_sources
from scheduler_proc.computing.model.families.headless import (
    classifier_sources,
    classifies,
    count_labels,
    norm_sources,
)
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, WINDOW, read_kinds
from scheduler_proc.computing.model.families.llama import fit_window
from scheduler_proc.computing.model.families.rope import read_rope_parameters

THETAS = {WHOLE_CONTEXT: ("global_rope_theta", 160_000.0), WINDOW: ("local_rope_theta", 10_000.0)}
"""By kind of layer, the name of its theta before transformers 5, and its default."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hidden_size = hf_config.count("hidden_size")
    num_layers, period = hf_config.num_layers, "global_attn_every_n_layers"
    every = hf_config.count(period, 3)
    kinds = read_kinds(hf_config, [WINDOW if index % every else WHOLE_CONTEXT for index in range(num_layers)])
    hf_config.choice("hidden_activation", ["gelu"], "gelu")
    has_mlp_bias = hf_config.flag("mlp_bias", False)
    norm = NormDescription(
        kind="layer",
        size=hidden_size,
        eps=hf_config.number("norm_eps", 1e-5),
        has_bias=hf_config.flag("norm_bias", False),
    )
    attention = describe_attention(hf_config, has_bias=hf_config.flag("attention_bias", False))
    ropes, window = hf_config.section("rope_parameters") or HfConfig({}), hf_config.count("local_attention", 128)
    of_kind: dict[str, AttentionDescription] = {}
    for kind, (name, theta) in THETAS.items():
        own = ropes.section(kind) or HfConfig({})
        rope = read_rope_parameters(own, HfConfig({"rope_theta": hf_config.number(name, theta)}))
        seen = fit_window(window // 2 + 1, max_model_len) if kind == WINDOW else None
        of_kind[kind] = replace(attention, rope=rope, window=seen)
    mlp = DenseMlpDescription(size=hf_config.count("intermediate_size"), activation="gelu_gated", has_bias=has_mlp_bias)
    layers = [
        # The norm of the embeddings is the first one of the stream; the first layer has no other before its attention.
        LayerDescription(
            mixers=(of_kind[kind],), mlp=mlp, attention_norm=replace(norm, replaces_stream=index == 0), mlp_norm=norm
        )
        for index, kind in enumerate(kinds)
    ]
    return ModelDescription(
        vocab_size=hf_config.count("vocab_size"),
        hidden_size=hidden_size,
        layers=tuple(layers),
        final_norm=norm,
        classifier=_describe_classifier(hf_config, norm) if classifies(hf_config) else None,
        has_tied_head=True,  # there is none: only logits of a warm-up step would need it
    )


def _describe_classifier(hf_config: HfConfig, norm: NormDescription) -> ClassifierDescription:
    hf_config.choice("classifier_activation", ["gelu"], "gelu")
    has_bias = hf_config.flag("classifier_bias", False)
    return ClassifierDescription(
        num_labels=count_labels(hf_config), activation="gelu", has_dense_bias=has_bias, norm=norm
    )


def list_sources(model: ModelDescription) -> list[Source]:
    hidden, norm_bias = model.hidden_size, model.final_norm.has_bias
    sources = [embedding_source("model.embeddings.tok_embeddings.weight", model)]
    for index, layer in enumerate(model.layers):
        attention, mlp = layer.find(AttentionDescription), layer.mlp
        assert attention is not None
        assert isinstance(mlp, DenseMlpDescription)
        block, ours, has_bias = f"model.layers.{index}", f"layers.{index}", attention.has_qkv_bias
        norm = f"{block}.attn_norm" if index else "model.embeddings.norm"
        sources += [
            *norm_sources(norm, f"{ours}.attention_norm", hidden, has_bias=norm_bias),
            *linear_sources(f"{block}.attn.Wqkv", f"{ours}.qkv", 3 * hidden, hidden, has_bias),
            *linear_sources(f"{block}.attn.Wo", f"{ours}.attention_out", hidden, hidden, has_bias),
            *norm_sources(f"{block}.mlp_norm", f"{ours}.mlp_norm", hidden, has_bias=norm_bias),
            *linear_sources(f"{block}.mlp.Wi", f"{ours}.mlp_in", mlp.in_size, hidden, mlp.has_bias),
            *linear_sources(f"{block}.mlp.Wo", f"{ours}.mlp_out", hidden, mlp.size, mlp.has_bias),
        ]
    sources += norm_sources("model.final_norm", "final_norm", hidden, has_bias=norm_bias)
    return sources + classifier_sources(model, "classifier", "head.dense", "head.norm")


FAMILY = Family(
    architectures=tuple(f"ModernBert{task}" for task in TASKS),
    model_types=("modernbert",),
    describe=describe,
    list_sources=list_sources,
    prefix="model.",
    ignored=re.compile(r"(head|decoder|classifier)\..*"),
)
