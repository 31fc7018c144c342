"""The model's tokenizer: encodes text to ids, and decodes ids to text."""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tokenizers import Tokenizer

from runtime.tokenizer_files import load_tokenizer
from tokenizer_proc.joined_texts import JoinedTexts, Texts, join_by_transformers, join_texts

MAX_ENCODED_CHARS = 2_000_000
"""Maximum length of a text that need not fit the context. It takes about two seconds, which block other prompts."""


@dataclass(frozen=True)
class Encoding:
    """Converts text to ids and back.

    `to_ids` gets a text, and whether to add the special tokens that the tokenizer adds to a prompt. It raises for text
    that cannot be encoded. `to_text` includes special tokens. `token_of` returns the vocabulary entry of an id,
    `None` if it has none. `vocabulary` returns all entries. `join` gives the ids of texts that are pooled. `id_of`
    returns the id of a vocabulary entry, `None` if there is none. `special_ids`: tokens that stand for no text.
    """

    to_ids: Callable[[str, bool], list[int]]
    to_text: Callable[[list[int]], str]
    token_of: Callable[[int], str | None]
    vocabulary: Callable[[], Iterable[str]]
    join: Callable[[Texts], JoinedTexts]
    id_of: Callable[[str], int | None] = lambda token: None
    special_ids: Collection[int] = ()

    @cached_property
    def longest_token_chars(self) -> int:
        """The maximum number of characters of a token. It takes up to 0.1 s for the first time."""
        return max(map(len, self.vocabulary()), default=1)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.to_ids(text, add_special_tokens)


def load_encoding(directory: str) -> Encoding:
    """Returns the encoding of the tokenizer in `directory`. Raises `BootError` if it cannot be loaded."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # batches have a single text, so threads would not help
    return load_tokenizer(directory, _from_tokenizer, _from_transformers)


def _from_tokenizer(tokenizer: Tokenizer) -> Encoding:
    tokenizer.no_truncation()  # even if the file enables it: a long prompt is rejected, not cut
    tokenizer.no_padding()

    def to_ids(text: str, add_special_tokens: bool) -> list[int]:
        # The batch call releases the GIL, and the fast one skips offsets.
        return tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def to_text(ids: list[int]) -> str:
        return tokenizer.decode_batch([ids], skip_special_tokens=False)[0]

    special_ids = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    join = partial(join_texts, tokenizer)
    return Encoding(
        to_ids, to_text, tokenizer.id_to_token, tokenizer.get_vocab, join, tokenizer.token_to_id, special_ids
    )


def _from_transformers(loaded: Any) -> Encoding:
    def to_ids(text: str, add_special_tokens: bool) -> list[int]:
        return loaded(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]

    def to_text(ids: list[int]) -> str:
        return loaded.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def token_of(token_id: int) -> str | None:
        return loaded.convert_ids_to_tokens(token_id) if token_id < len(loaded) else None

    vocabulary, join = loaded.get_vocab(), partial(join_by_transformers, loaded)
    special_ids = frozenset(loaded.all_special_ids)
    return Encoding(to_ids, to_text, token_of, vocabulary.keys, join, vocabulary.get, special_ids)
