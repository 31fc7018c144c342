"""A small random Llama checkpoint and its tokenizer, for tests that serve a model but need no reference.

Nothing here imports torch or transformers, which would take each test worker seconds.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 320
HIDDEN, HEAD, MLP = 64, 16, 88
NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = 3, 4, 2


def write_tiny_llama(path: Path, context: int = 256, seed: int = 17) -> None:
    """Writes config.json, model.safetensors and the byte-level tokenizer into `path`; end-of-sequence id 2.

    The weights are the same for each `seed`, and large, so that a row's best token has a clear lead.
    """
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": context,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(float(len(shape) == 1), 0.2, shape).astype(np.float32) for name, shape in _shapes()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(path)


def _shapes() -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", (VOCAB_SIZE, HIDDEN)),
        ("model.norm.weight", (HIDDEN,)),
    ]
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        shapes += [
            (f"{prefix}.input_layernorm.weight", (HIDDEN,)),
            (f"{prefix}.self_attn.q_proj.weight", (NUM_HEADS * HEAD, HIDDEN)),
            (f"{prefix}.self_attn.k_proj.weight", (NUM_KV_HEADS * HEAD, HIDDEN)),
            (f"{prefix}.self_attn.v_proj.weight", (NUM_KV_HEADS * HEAD, HIDDEN)),
            (f"{prefix}.self_attn.o_proj.weight", (HIDDEN, NUM_HEADS * HEAD)),
            (f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)),
            (f"{prefix}.mlp.gate_proj.weight", (MLP, HIDDEN)),
            (f"{prefix}.mlp.up_proj.weight", (MLP, HIDDEN)),
            (f"{prefix}.mlp.down_proj.weight", (HIDDEN, MLP)),
        ]
    return shapes


def write_tokenizer(path: Path, vocab_size: int = VOCAB_SIZE, source: Path | None = None) -> None:
    """Gives the checkpoint a tokenizer: the tokenizer.json `source`, or a byte-level one of `vocab_size` tokens.

    The latter has a token for each byte and, from 256 on, pairs that no text yields: any text round-trips, and any id
    decodes to something.
    """
    if source is not None:
        shutil.copy(source, path / "tokenizer.json")
    else:
        assert vocab_size >= 256
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        names = [*alphabet, *(f"{first}{second}" for first in alphabet for second in alphabet)]
        tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names[:vocab_size])}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}),
        encoding="utf-8",
    )
