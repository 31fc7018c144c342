"""A small random BERT in a folder as sentence-transformers writes it: mean pooling, vectors of length 1.

Nothing here imports torch or transformers, which would take each test worker seconds.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, processors

from tests.tiny_llama import write_tokenizer

VOCAB_SIZE = 320
HIDDEN, MLP = 64, 96
NUM_LAYERS, NUM_HEADS = 2, 4

CLS, SEP = 300, 301
"""Ids of pairs that no text yields."""


def write_tiny_bert(path: Path, context: int = 256) -> None:
    """Writes the folder; the weights are the same in every call. The tokenizer's tokens are bytes."""
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": context,
        "type_vocab_size": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    _write_json(path / "config.json", config)
    rng = np.random.default_rng(17)
    weights = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in _shapes(context)}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    parts = {"0": ("", "Transformer"), "1": ("1_Pooling", "Pooling"), "2": ("2_Normalize", "Normalize")}
    modules = [
        {"idx": int(name), "name": name, "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for name, (folder, kind) in parts.items()
    ]
    _write_json(path / "modules.json", modules)
    (path / "1_Pooling").mkdir()
    _write_json(
        path / "1_Pooling" / "config.json", {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
    )
    _write_json(path / "sentence_bert_config.json", {"max_seq_length": context, "do_lower_case": False})
    write_tokenizer(path, VOCAB_SIZE)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    cls, sep = tokenizer.id_to_token(CLS), tokenizer.id_to_token(SEP)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[cls, "$A", sep], pair=[cls, "$A", sep, "$B:1", f"{sep}:1"], special_tokens=[(cls, CLS), (sep, SEP)]
    )
    tokenizer.save(str(path / "tokenizer.json"))


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _shapes(context: int) -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("embeddings.word_embeddings.weight", (VOCAB_SIZE, HIDDEN)),
        ("embeddings.position_embeddings.weight", (context, HIDDEN)),
        ("embeddings.token_type_embeddings.weight", (2, HIDDEN)),
        *_pair("embeddings.LayerNorm", HIDDEN),
    ]
    for layer in range(NUM_LAYERS):
        prefix = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes += _pair(f"{prefix}.attention.self.{name}", HIDDEN, HIDDEN)
        shapes += _pair(f"{prefix}.attention.output.dense", HIDDEN, HIDDEN)
        shapes += _pair(f"{prefix}.attention.output.LayerNorm", HIDDEN)
        shapes += _pair(f"{prefix}.intermediate.dense", MLP, HIDDEN)
        shapes += _pair(f"{prefix}.output.dense", HIDDEN, MLP)
        shapes += _pair(f"{prefix}.output.LayerNorm", HIDDEN)
    return shapes


def _pair(name: str, *shape: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", shape), (f"{name}.bias", shape[:1])]
