"""Writes tokenizer.json and tokenizer_config.json for the tokenizer in a GGUF file's metadata.

A text becomes the tokens that llama.cpp makes of it with `parse_special`, except where llama.cpp is known to differ
from the model's own tokenizer.

WordPiece, BERT's tokenizer. GGUF marks the beginning of a word, tokenizer.json its continuation.

SentencePiece's unigram model (`t5`): the division of a text into pieces that has the best sum of scores.

SentencePiece's byte-pair encoding: the scores of the pieces order the merges.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from messages.errors import BootError
from runtime.special_tokens import CONFIG_FILE, TOKENIZER_JSON
from supervisor.model.gguf.tokenizer.byte_pairs import byte_pair_parts
from supervisor.model.gguf.tokenizer.parts import (
    SPACE,
    Part,
    Parts,
    byte_pair_model,
    piece_decoder,
    replace,
    sequence,
    split,
)
from supervisor.model.gguf.tokenizer.vocabulary import (
    ID_KEYS,
    PREFIX,
    TokenType,
    Vocabulary,
    read_text,
    read_vocabulary,
    refuse,
)

MAX_CHARS, MAX_MERGES = 1 << 28, 1 << 21
"""The characters of pairs that are looked for, and the pairs that are found."""


def sentence_piece_parts(vocabulary: Vocabulary) -> Parts:
    """Raises `BootError` if the scores do not order the pieces."""
    begins_with_space = vocabulary.flag("add_space_prefix", True)
    prepend: list[Part] = [{"type": "Prepend", "prepend": SPACE}] if begins_with_space else []
    return Parts(
        byte_pair_model(vocabulary.id_of_text(), _merges(vocabulary), vocabulary.unknown_text(), has_byte_tokens=True),
        sequence("normalizers", [*prepend, replace(" ", SPACE)]),
        None,
        piece_decoder(begins_with_space),
        "bos_token" if vocabulary.flag("add_bos_token", True) else None,
        "eos_token" if vocabulary.flag("add_eos_token", False) else None,
    )


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Returns all pairs of tokens that make a token, in the order in which SentencePiece merges them.

    It merges the pair whose piece has the best score, of equal ones the leftmost. Equal scores are those of runs of
    spaces: a run grows from its left end, so the pair with the longer left half is first.
    """
    scores = vocabulary.scores()
    pieces = {
        text: score
        for text, score, kind in zip(vocabulary.texts, scores, vocabulary.types, strict=True)
        if kind in (TokenType.NORMAL, TokenType.UNUSED)
    }
    merges: list[tuple[float, int, str, str]] = []
    num_chars = 0
    for text, prefixes in _with_prefixes(pieces):
        num_chars += len(text) * len(prefixes)
        if num_chars > MAX_CHARS or len(merges) > MAX_MERGES:
            refuse("tokens", "have too many other tokens within them")
        for left in prefixes:
            right = text[len(left) :]
            if right in pieces:
                merges.append((-pieces[text], -len(left), left, right))
    if len(merges) > 1 and len({merge[0] for merge in merges}) == 1:
        raise BootError(
            f"{PREFIX}scores: all {len(merges)} merges have the same score, so their order is not in the file: it was "
            "converted without the model's SentencePiece file. Give a directory with the model's tokenizer.json with "
            "--tokenizer"
        )
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in merges]


def _with_prefixes(pieces: Mapping[str, float]) -> Iterator[tuple[str, list[str]]]:
    """Yields each piece with the other pieces that it begins with. In order, those are the last ones before it."""
    prefixes: list[str] = []
    for text in sorted(pieces):
        while prefixes and not text.startswith(prefixes[-1]):
            prefixes.pop()
        yield text, prefixes
        prefixes.append(text)


CHARSMAP = "precompiled_charsmap"


def unigram_parts(vocabulary: Vocabulary) -> Parts:
    """Raises `BootError` without a token for unknown pieces."""
    if "unk_token" not in vocabulary.ids:
        refuse("unknown_token_id", "is missing")
    scores = [
        0.0 if kind == TokenType.USER_DEFINED else score
        for score, kind in zip(vocabulary.scores(), vocabulary.types, strict=True)
    ]
    model = {
        "type": "Unigram",
        "unk_id": vocabulary.ids["unk_token"],
        "vocab": list(zip(vocabulary.texts, scores, strict=True)),
        "byte_fallback": False,
    }
    charsmap = vocabulary.metadata.get(PREFIX + CHARSMAP)
    normalizer = None if charsmap is None else {"type": "Precompiled", "precompiled_charsmap": _encode(charsmap)}
    begins_with_space = vocabulary.flag("add_space_prefix", True)
    scheme = "always" if begins_with_space else "never"
    spaces: Part = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    splits: list[Part] = [split(" +", "Removed")] if vocabulary.flag("remove_extra_whitespaces", False) else []
    return Parts(
        model,
        normalizer,
        sequence("pretokenizers", [*splits, spaces]),
        piece_decoder(begins_with_space),
        "bos_token" if vocabulary.flag("add_bos_token", False) else None,
        "eos_token" if vocabulary.flag("add_eos_token", True) else None,
    )


def _encode(charsmap: Any) -> str:
    """Returns the table of character replacements, a list of signed or unsigned bytes, in base 64."""
    try:
        return base64.b64encode(bytes(byte & 0xFF for byte in charsmap)).decode()
    except (TypeError, ValueError):
        refuse(CHARSMAP, "is no list of bytes")


CONTINUES = "##"


def word_piece_parts(vocabulary: Vocabulary) -> Parts:
    """Raises `BootError` without a token for unknown words."""
    unknown = vocabulary.unknown_text() or refuse("unknown_token_id", "is missing")
    lowercase = vocabulary.flag("normalizer.lowercase", True)
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": vocabulary.flag("normalizer.strip_accents", lowercase),
        "lowercase": lowercase,
    }
    model = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": CONTINUES,
        "max_input_chars_per_word": 100,
        "vocab": {_spell(vocabulary, token_id): token_id for token_id in range(len(vocabulary.texts))},
    }
    decoder = {"type": "WordPiece", "prefix": CONTINUES, "cleanup": True}
    return Parts(model, normalizer, {"type": "BertPreTokenizer"}, decoder, "cls_token", "sep_token")


def _spell(vocabulary: Vocabulary, token_id: int) -> str:
    text = vocabulary.texts[token_id]
    if vocabulary.is_special(token_id):
        return text
    return text[1:] if text.startswith(SPACE) else CONTINUES + text


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
