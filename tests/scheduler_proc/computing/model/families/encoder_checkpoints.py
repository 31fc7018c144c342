"""Small random encoders in folders as sentence-transformers writes them.

The weights come from numpy's generator, so that they are the same wherever the golden vectors are compared.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

VOCAB_SIZE, CONTEXT, HIDDEN = 300, 96, 32
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": CONTEXT,
}
SPECIAL = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
OFFSET = {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
HEADS = {"num_key_value_heads": 1, "head_dim": 16}


@dataclass(frozen=True)
class EncoderKind:
    """`architecture` and `config` are transformers'. `modules`: the config.json of each further module, by its type."""

    architecture: str
    config: dict[str, Any]
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)


def pooling(mode: str) -> dict[str, Any]:
    return {"word_embedding_dimension": HIDDEN, f"pooling_mode_{mode}": True, "include_prompt": True}


def dense(num_in: int, num_out: int, activation: str, *, bias: bool) -> dict[str, Any]:
    name = f"torch.nn.modules.{activation}"
    return {"in_features": num_in, "out_features": num_out, "bias": bias, "activation_function": name}


GEMMA = {"use_bidirectional_attention": True, "sliding_window": 16, "sliding_window_pattern": 3}
ENCODERS = {
    "bert": EncoderKind("BertModel", SIZES, {"Pooling": pooling("mean_tokens"), "Normalize": {}}),
    "roberta": EncoderKind("RobertaModel", SIZES | OFFSET | {"type_vocab_size": 1}, {"Pooling": pooling("cls_token")}),
    "xlm-roberta": EncoderKind(
        "XLMRobertaModel",
        SIZES | OFFSET | {"type_vocab_size": 1},
        {"Pooling": pooling("max_tokens"), "Dense": dense(HIDDEN, 8, "activation.Tanh", bias=True)},
    ),
    "mpnet": EncoderKind("MPNetModel", SIZES | OFFSET, {"Pooling": pooling("weightedmean_tokens"), "Normalize": {}}),
    "modernbert": EncoderKind(
        "ModernBertModel",
        SIZES | SPECIAL | {"local_attention": 16},
        {"Pooling": pooling("cls_token"), "Normalize": {}},
    ),
    "gemma": EncoderKind(
        "Gemma3TextModel",
        SIZES | HEADS | GEMMA | {"query_pre_attn_scalar": 16},
        {
            "Pooling": pooling("mean_tokens"),
            "Dense": dense(HIDDEN, 64, "linear.Identity", bias=False),
            "Dense 2": dense(64, HIDDEN, "linear.Identity", bias=False),
            "Normalize": {},
        },
    ),
    "qwen3": EncoderKind("Qwen3Model", SIZES | HEADS, {"Pooling": pooling("lasttoken"), "Normalize": {}}),
}
"""The last one is a decoder without a head."""

CLASSIFIERS = {
    "bert": EncoderKind("BertForSequenceClassification", SIZES | {"num_labels": 3}),
    "roberta": EncoderKind(
        "RobertaForSequenceClassification", SIZES | OFFSET | {"type_vocab_size": 1, "num_labels": 1}
    ),
    "mpnet": EncoderKind("MPNetForSequenceClassification", SIZES | OFFSET | {"num_labels": 2}),
    "modernbert": EncoderKind(
        "ModernBertForSequenceClassification",
        SIZES | SPECIAL | {"local_attention": 16, "classifier_pooling": "mean", "num_labels": 4},
    ),
    "qwen3": EncoderKind("Qwen3ForSequenceClassification", SIZES | HEADS | {"num_labels": 2, "pad_token_id": 0}),
}


def write_encoder(kind: EncoderKind, path: Path) -> Any:
    """Writes the folder; returns transformers' model."""
    model_class: Any = getattr(transformers, kind.architecture)
    rng = np.random.default_rng(7)
    model = model_class(model_class.config_class(**kind.config)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            offset = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            weight.copy_(torch.from_numpy(rng.normal(offset, 0.25, tuple(weight.shape))))
    model.save_pretrained(path)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, (name, config) in enumerate(kind.modules.items(), start=1):
        kind_name = name.split()[0]
        folder = path / f"{index}_{kind_name}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if kind_name == "Dense":
            shapes = {"linear.weight": (config["out_features"], config["in_features"])}
            shapes |= {"linear.bias": (config["out_features"],)} if config["bias"] else {}
            weights = {key: torch.from_numpy(rng.normal(0, 0.25, shape)).float() for key, shape in shapes.items()}
            save_file(weights, folder / "model.safetensors")
        module = f"sentence_transformers.models.{kind_name}"
        modules.append({"idx": index, "name": str(index), "path": folder.name, "type": module})
    if kind.modules:
        (path / "modules.json").write_text(json.dumps(modules))
    return model
