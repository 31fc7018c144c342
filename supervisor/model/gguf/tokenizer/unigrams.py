"""SentencePiece's unigram model (`t5`): the division of a text into pieces that has the best sum of scores."""

import base64
from typing import Any

from supervisor.model.gguf.tokenizer.parts import (
    SPACE,
    Part,
    Parts,
    piece_decoder,
    sequence,
    split,
)
from supervisor.model.gguf.tokenizer.vocabulary import (
    PREFIX,
    TokenType,
    Vocabulary,
    refuse,
)

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
