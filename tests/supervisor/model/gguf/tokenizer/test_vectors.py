"""Tokenizers from GGUF metadata against llama.cpp's vectors, in both directions and with the servers' own decoders."""

import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from detokenizer_proc.vocabulary import vocabulary_of
from runtime.gguf.gguf_file import read_gguf
from supervisor.model.gguf.tokenizer.tokenizer_json import write_tokenizer
from tests.supervisor.model.gguf.tokenizer.vectors import NAMES, REDUCED, golden, read_vectors, reduced_metadata

LLAMA_CPP = "SLUICE_LLAMA_CPP"
"""Names the directory of llama.cpp's sources in the source package of llama-cpp-python 0.3.36 (vendor/llama.cpp)."""


COMPOSING = ["qwen2", "qwen35"]
"""The models' own tokenizer.json composes characters first (normal form C); llama.cpp does not."""


def check(metadata: Mapping[str, Any], vectors: list[tuple[str, list[int]]], directory: Path) -> None:
    write_tokenizer(metadata, directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    vocabulary = vocabulary_of(tokenizer, len(metadata["tokenizer.ggml.tokens"]))
    is_lossless = metadata["tokenizer.ggml.model"] != "bert"
    for text, ids in vectors:
        if metadata.get("tokenizer.ggml.pre") in COMPOSING and not unicodedata.is_normalized("NFC", text):
            continue
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        decoder = vocabulary.open_decoder(skip_special_tokens=False)
        decoded = "".join(decoder.push(token_id) for token_id in ids) + decoder.finish()
        assert decoded == tokenizer.decode(ids, skip_special_tokens=False)
        assert decoded == text or not is_lossless


@pytest.mark.parametrize("name", [*REDUCED, "smollm2"])
def test_the_parts_of_vocabularies_that_the_vectors_use(name: str, tmp_path: Path) -> None:
    content = golden()
    vocabulary = content["vocabularies"][name]
    vectors = [(content["texts"][int(index)], ids) for index, ids in vocabulary["expected"].items()]
    assert len(vectors) > 40
    check(vocabulary["metadata"], vectors, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_whole_vocabularies(name: str, tmp_path: Path) -> None:
    if LLAMA_CPP not in os.environ:
        pytest.skip(f"{LLAMA_CPP} does not name a directory with llama.cpp's vocabularies")
    path = Path(os.environ[LLAMA_CPP]) / "models" / f"ggml-vocab-{name}.gguf"
    check(read_gguf(path).metadata, read_vectors(path), tmp_path)


@pytest.mark.parametrize("name", COMPOSING)
def test_characters_are_composed_first_if_the_model_requests_it(tmp_path: Path, name: str) -> None:
    texts: list[list[int]] = []
    write_tokenizer(reduced_metadata(name), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for form in ("NFC", "NFD"):
        texts.append(tokenizer.encode(unicodedata.normalize(form, "Äpfel")).ids)
    assert texts[0] == texts[1]
    assert texts[0]
