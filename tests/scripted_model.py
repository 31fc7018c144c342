"""A checkpoint that says what it is told to: one token of its vocabulary follows each other, whatever came before.

Attention and MLPs are zeros, so a step depends on the last token alone, and the output layer has what comes after it.
For that no token comes twice in the scripts: they are cut into pieces of some bytes, some of them parts of characters.
"""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from detokenizer_proc.vocabulary import byte_level_alphabet

END = "<|im_end|>"
WIDTH = 256
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
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end_id,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 2, (vocab_size, WIDTH), generator=generator) * 2.0 - 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(codes)
        for token_id, next_id in pairs:
            model.lm_head.weight[next_id] += codes[token_id]
    model.save_pretrained(path)
