"""The vectors of ../shared/tokenizers/vectors: strings and their token ids."""

from pathlib import Path

import pytest

from tests.conftest import SHARED

NAMES = {"tokenizers/gpt2": "gpt-2", "tokenizers/qwen2": "qwen2"}
"""The vectors' name by the folder of the tokenizer."""


def read_vectors(tokenizer: str) -> list[tuple[str, list[int]]]:
    """Returns (text, ids) pairs; skips the test where the material is absent."""
    stem = SHARED / "tokenizers/vectors" / f"ggml-vocab-{NAMES[tokenizer]}.gguf"
    if not stem.with_suffix(".gguf.inp").is_file():
        pytest.skip("needs ../shared (tokenizer vectors) beside the checkout")
    texts = _read(stem, ".gguf.inp").split("\n__ggml_vocab_test__\n")
    lines = _read(stem, ".gguf.out").split("\n")
    return [(text, [int(token_id) for token_id in line.split()]) for text, line in zip(texts, lines, strict=True)]


def _read(stem: Path, suffix: str) -> str:
    return stem.with_suffix(suffix).read_bytes().decode()
