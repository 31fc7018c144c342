"""A checkpoint that says what it is told to: one token of its vocabulary follows each other, whatever came before.

Attention and MLPs are zeros, so a step depends on the last token alone, and the output layer has what comes after it.
For that no token comes twice in the scripts: they are cut into pieces of some bytes, some of them parts of characters.
"""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from detokenizer_proc.vocabulary import byte_level_alphabet

END = "<|im_end|>"
WIDTH, MLP = 256, 16
NUM_HEADS, HEAD = 2, 8
CONTEXT = 16384


def build_scripted_model(path: Path, scripts: Mapping[str, str], chat_template: str) -> None:
    """Writes a model that says a script, and then ends, after a prompt that ends with its key, which is one token."""
    alphabet = byte_level_alphabet()
    vocab = {character: byte for byte, character in enumerate(alphabet)}
    chains: list[list[int]] = []
    for script in scripts.values():
        chains.append([])
        for piece in _unique_pieces(script.encode(), set(vocab)):
            chains[-1].append(vocab.setdefault(piece, len(vocab)))
    ids = {token: len(vocab) + number for number, token in enumerate([END, *scripts])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.add_tokens(list(scripts))
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    pairs: list[tuple[int, int]] = []
    for start, chain in zip(scripts, chains, strict=True):
        pairs += itertools.pairwise([ids[start], *chain, ids[END]])
    _save(path, len(vocab) + len(ids), ids[END], pairs)


def _unique_pieces(text: bytes, used: set[str]) -> list[str]:
    """Cuts `text` into pieces of two bytes or more that are not in `used`, and adds them to it."""
    alphabet = byte_level_alphabet()
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = start + 2
        while (piece := "".join(alphabet[byte] for byte in text[start:end])) in used and end < len(text):
            end += 1
        while piece in used:  # the last one
            used.discard(pieces[-1])
            piece = pieces.pop() + piece
        used.add(piece)
        pieces.append(piece)
        start = end
    return pieces


def _save(path: Path, vocab_size: int, end_id: int, pairs: list[tuple[int, int]]) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": 1,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end_id,
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    codes = np.random.default_rng(3).choice(np.array([-1.0, 1.0], np.float32), (vocab_size, WIDTH))
    output = np.zeros((vocab_size, WIDTH), np.float32)
    for token_id, next_id in pairs:
        output[next_id] += codes[token_id]
    zeros = {
        "self_attn.q_proj": (NUM_HEADS * HEAD, WIDTH),
        "self_attn.k_proj": (HEAD, WIDTH),
        "self_attn.v_proj": (HEAD, WIDTH),
        "self_attn.o_proj": (WIDTH, NUM_HEADS * HEAD),
        "mlp.gate_proj": (MLP, WIDTH),
        "mlp.up_proj": (MLP, WIDTH),
        "mlp.down_proj": (WIDTH, MLP),
    }
    norms = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
    weights = {"model.embed_tokens.weight": codes, "lm_head.weight": output}
    weights |= {f"{name}.weight": np.ones(WIDTH, np.float32) for name in norms}
    weights |= {f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in zeros.items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
