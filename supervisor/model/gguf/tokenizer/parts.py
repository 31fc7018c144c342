"""The parts of tokenizer.json that differ by kind of tokenizer."""

from typing import Any, NamedTuple

Part = dict[str, Any]

SPACE = "▁"
"""Stands for a space in the tokens of SentencePiece."""


class Parts(NamedTuple):
    """`first` and `last` are the names of the special tokens around a text, `None` for no token."""

    model: Part
    normalizer: Part | None
    pre_tokenizer: Part | None
    decoder: Part
    first: str | None
    last: str | None


def sequence(kind: str, parts: list[Part]) -> Part | None:
    """Returns the parts as one part, whose list is named `kind`; `None` without parts."""
    return {"type": "Sequence", kind: parts} if len(parts) > 1 else parts[0] if parts else None


def replace(pattern: str, content: str) -> Part:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def split(pattern: str, behavior: str = "Isolated") -> Part:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def piece_decoder(strips_space: bool) -> Part:
    """Returns the decoder of tokens with `SPACE` and tokens of one byte, such as `<0x0A>`."""
    steps = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {"type": "Sequence", "decoders": [*steps, strip] if strips_space else steps}


def byte_pair_model(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    unknown: str | None = None,
    *,
    has_byte_tokens: bool = False,
    ignore_merges: bool = False,
) -> Part:
    """Returns a byte-pair model; with `has_byte_tokens`, characters without a token become tokens of one byte."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": has_byte_tokens,
        "byte_fallback": has_byte_tokens,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }
