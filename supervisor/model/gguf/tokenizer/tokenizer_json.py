"""Writes tokenizer.json and tokenizer_config.json for the tokenizer in a GGUF file's metadata.

A text becomes the tokens that llama.cpp makes of it with `parse_special`, except where llama.cpp is known to differ
from the model's own tokenizer.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from runtime.special_tokens import CONFIG_FILE, TOKENIZER_JSON
from supervisor.model.gguf.tokenizer.byte_pairs import byte_pair_parts
from supervisor.model.gguf.tokenizer.parts import (
    Part,
    Parts,
)
from supervisor.model.gguf.tokenizer.sentence_pieces import sentence_piece_parts
from supervisor.model.gguf.tokenizer.unigrams import unigram_parts
from supervisor.model.gguf.tokenizer.vocabulary import (
    ID_KEYS,
    TokenType,
    Vocabulary,
    read_text,
    read_vocabulary,
    refuse,
)
from supervisor.model.gguf.tokenizer.word_pieces import word_piece_parts

KINDS: dict[str, Callable[[Vocabulary], Parts]] = {
    "gpt2": byte_pair_parts,
    "gemma4": byte_pair_parts,
    "llama": sentence_piece_parts,
    "bert": word_piece_parts,
    "t5": unigram_parts,
}
"""By `tokenizer.ggml.model`."""

KEEPS_BLANKS = ("<unk>", "<s>", "<|endoftext|>")
"""Tokens of Phi-3 that do not drop the blanks after them, as its others do (which is not in the file)."""


def write_tokenizer(metadata: Mapping[str, Any], directory: Path) -> int:
    """Writes both files, and returns the number of tokens.

    Raises `BootError` if the tokenizer is damaged, or of an unknown kind.
    """
    vocabulary = read_vocabulary(metadata, tuple(KINDS))
    parts = KINDS[vocabulary.kind](vocabulary)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": _post_processor(vocabulary, parts),
        "decoder": parts.decoder,
        "model": parts.model,
    }
    special = {name: vocabulary.texts[token_id] for name, token_id in vocabulary.named_ids().items()}
    config = special | {
        "add_bos_token": parts.first is not None,
        "add_eos_token": parts.last is not None,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / TOKENIZER_JSON).write_bytes(msgspec.json.encode(tokenizer))
    (directory / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    return len(vocabulary.texts)


def _added_tokens(vocabulary: Vocabulary) -> list[Part]:
    """Returns the tokens whose text is found in a prompt before anything else is done with it."""
    name = read_text(vocabulary.metadata, "general.name").lower()
    drops_blanks = "phi-3" in name or "phi3" in name
    named = set(vocabulary.named_ids().values())
    tokens: list[Part] = []
    for token_id, text in enumerate(vocabulary.texts):
        is_special = token_id in named or vocabulary.is_special(token_id)
        if is_special or vocabulary.types[token_id] == TokenType.USER_DEFINED:
            right_strip = drops_blanks and text not in KEEPS_BLANKS
            token = {"id": token_id, "content": text, "single_word": False, "lstrip": False, "rstrip": right_strip}
            tokens.append(token | {"normalized": False, "special": is_special})
    return tokens


def _post_processor(vocabulary: Vocabulary, parts: Parts) -> Part | None:
    """Adds the special tokens around a text, or a pair of texts."""
    texts = {name: _text_of(vocabulary, name) for name in (parts.first, parts.last) if name}
    if not texts:
        return None

    def part(name: str | None, type_id: int) -> list[Part]:
        return [{"SpecialToken": {"id": texts[name], "type_id": type_id}}] if name else []

    def text(letter: str, type_id: int) -> Part:
        return {"Sequence": {"id": letter, "type_id": type_id}}

    single = [*part(parts.first, 0), text("A", 0), *part(parts.last, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), *part(parts.last, 1)],
        "special_tokens": {
            token: {"id": token, "ids": [vocabulary.ids[name]], "tokens": [token]} for name, token in texts.items()
        },
    }


def _text_of(vocabulary: Vocabulary, name: str) -> str:
    if name not in vocabulary.ids:
        refuse(ID_KEYS[name], "is missing, but every text is to have this token")
    return vocabulary.texts[vocabulary.ids[name]]
