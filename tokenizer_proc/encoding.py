"""The model's tokenizer as this process needs it: text in, ids out."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from messages.tokenizer_files import load_tokenizer, return_freed_memory


@dataclass(frozen=True)
class Encoding:
    """How text becomes ids.

    `encode` adds the special tokens that the tokenizer itself adds to a prompt; it raises for text it cannot take.
    `longest_token_chars`: no token stands for more characters than this.
    """

    encode: Callable[[str], list[int]]
    longest_token_chars: int


def load_encoding(directory: str) -> Encoding:
    """Returns the encoding of the tokenizer in `directory`. Raises `BootError` where there is none."""
    encoding = load_tokenizer(directory, _from_json, _from_directory)
    return_freed_memory()
    return encoding


def _from_json(file: str) -> Encoding:
    return _from_tokenizer(Tokenizer.from_file(file))


def _from_tokenizer(tokenizer: Tokenizer) -> Encoding:
    tokenizer.no_truncation()  # a file may ask for it, but a prompt is refused rather than cut
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    tokens = (tokenizer.id_to_token(token_id) for token_id in range(tokenizer.get_vocab_size()))
    return Encoding(encode, max((len(token) for token in tokens if token), default=1))


def _from_directory(directory: str) -> Encoding:
    transformers: Any = importlib.import_module("transformers")  # 60 MB that a process with tokenizer.json saves
    loaded: Any = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    backend = getattr(loaded, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        return _from_tokenizer(backend)

    def encode(text: str) -> list[int]:
        return loaded(text, verbose=False)["input_ids"]

    return Encoding(encode, max((len(token) for token in loaded.get_vocab()), default=1))
