"""The vocabulary of the model's tokenizer: the text of each token id, and the rules that join tokens to text.

The rules are those of the `tokenizers` library's decoders, read from the decoder's own description. A decoder with
unknown rules is called itself, on a window of tokens.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tokenizers import Tokenizer

from detokenizer_proc.decoders import ByteLevelDecoder, Decoder, PieceDecoder, WindowDecoder
from runtime.tokenizer_files import load_tokenizer

NO_BYTE = 0x100
"""The code of characters that stand for no byte."""

SEPARATOR = "\ud800"
"""It is in no text of the library."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")


Spelling = tuple[str, bytes]
"""The text of one token on its own, with U+FFFD for parts of characters, and its bytes."""


@dataclass(frozen=True)
class Vocabulary:
    """Makes the decoder of each stream. `special_ids` are the tokens that a stream may leave out.

    `spell` returns a token's spelling in the middle of a text.
    """

    make_decoder: Callable[[frozenset[int]], Decoder]
    special_ids: frozenset[int]
    spell: Callable[[int], Spelling]

    def spell_first(self, token_id: int) -> Spelling:
        """Returns the token's spelling at the beginning of a text."""
        text, data = self.spell(token_id)
        if text.encode() != data:  # a part of a character
            return text, data
        decoder = self.open_decoder(False)
        text = decoder.push(token_id) + decoder.finish()
        return text, text.encode()

    def open_decoder(self, skip_special_tokens: bool) -> Decoder:
        return self.make_decoder(self.special_ids if skip_special_tokens else frozenset())

    def find_special(self, texts: Iterable[str]) -> dict[int, str]:
        """Returns the entries of `texts` that are special tokens, by token id."""
        return {self._special_by_text[text]: text for text in texts if text in self._special_by_text}

    @cached_property
    def _special_by_text(self) -> dict[str, int]:
        return {self.spell(token_id)[0]: token_id for token_id in self.special_ids}


def load_vocabulary(directory: str, vocab_size: int) -> Vocabulary:
    """Returns the vocabulary of the tokenizer in `directory`, for a model with ids below `vocab_size`.

    Raises `BootError` if it cannot be loaded.
    """
    return load_tokenizer(
        directory,
        lambda tokenizer: vocabulary_of(tokenizer, vocab_size),
        lambda loaded: _from_transformers(loaded, vocab_size),
        is_decoder=True,
    )


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Returns the vocabulary of `tokenizer`; ids from its size up to `vocab_size` have no token."""
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(vocab_size)]
    added = tokenizer.get_added_tokens_decoder()
    special = {token.content for token in added.values() if token.special}
    special_ids = frozenset(token_id for token_id, token in enumerate(tokens) if token in special)
    steps = _steps_of(tokenizer.decoder)
    if steps is not None and [step["type"] for step in steps] == ["ByteLevel"]:
        bytes_of = _byte_level_pieces(tokens, added)
        return Vocabulary(partial(ByteLevelDecoder, bytes_of), special_ids, partial(_spell, bytes_of))
    rules = None if steps is None else _piece_rules(steps)
    if rules is not None:
        pieces = [None if token is None else rules.piece(token) for token in tokens]
        first_pieces = {} if rules.metaspace is None else _first_pieces(tokens, rules)
        make: Callable[[frozenset[int]], Decoder] = partial(
            PieceDecoder, pieces, first_pieces=first_pieces, strip=rules.strip
        )
        return Vocabulary(make, special_ids, partial(_spell, pieces))
    missing_ids = {token_id for token_id, token in enumerate(tokens) if token is None}
    return _windowed(partial(tokenizer.decode, skip_special_tokens=False), special_ids, missing_ids)


def _windowed(
    decode: Callable[[list[int]], str], special_ids: frozenset[int], missing_ids: Iterable[int]
) -> Vocabulary:
    missing = frozenset(missing_ids)
    spell = partial(_spell_windowed, decode, missing)
    return Vocabulary(lambda hidden: WindowDecoder(decode, hidden | missing), special_ids, spell)


def _spell(pieces: Sequence[str | bytes | int | None], token_id: int) -> Spelling:
    piece = pieces[token_id]
    if isinstance(piece, str):
        return piece, piece.encode()
    data = b"" if piece is None else bytes((piece,)) if isinstance(piece, int) else piece
    return data.decode(errors="replace"), data


def _spell_windowed(decode: Callable[[list[int]], str], missing: frozenset[int], token_id: int) -> Spelling:
    """Returns the text that the token adds after itself, so that a space between tokens is included."""
    alone = "" if token_id in missing else decode([token_id])
    twice = decode([token_id, token_id]) if alone else ""
    text = (twice[len(alone) :] if twice.startswith(alone) else "") or alone
    return text, text.encode()


def _from_transformers(loaded: Any, vocab_size: int) -> Vocabulary:
    def decode(ids: list[int]) -> str:
        return loaded.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return _windowed(decode, frozenset(loaded.all_special_ids), range(len(loaded), vocab_size))


def _steps_of(decoder: Any) -> list[dict[str, Any]] | None:
    """Returns the decoder's steps in order, with nested sequences flattened; `None` without a decoder."""
    if decoder is None:
        return None
    steps: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = [json.loads(decoder.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = step["decoders"] + pending
        else:
            steps.append(step)
    return steps


@dataclass(frozen=True)
class PieceRules:
    """The effect of a known chain of decoders on a single token, and on the beginning of the text."""

    replacements: tuple[tuple[str, str], ...] = ()
    metaspace: str | None = None
    """The character that stands for a space in a token and is dropped from the first token of a text."""
    has_byte_tokens: bool = False
    strip: tuple[str, int] = ("", 0)

    def piece(self, token: str, space: str = " ") -> str | int:
        """Returns the text of a token, or the value of a byte token."""
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        if self.metaspace is not None:
            token = token.replace(self.metaspace, space)
        match = BYTE_TOKEN.fullmatch(token) if self.has_byte_tokens else None
        return int(match[1], 16) if match else token


def _piece_rules(steps: list[dict[str, Any]]) -> PieceRules | None:
    """Returns the rules of the chain Replace*, Metaspace?, ByteFallback?, Fuse?, Strip?; `None` for other chains."""
    rest = list(steps)

    def take(kind: str) -> dict[str, Any] | None:
        return rest.pop(0) if rest and rest[0]["type"] == kind else None

    replacements: list[tuple[str, str]] = []
    while step := take("Replace"):
        pattern = step["pattern"].get("String")
        if not pattern:
            return None
        replacements.append((pattern, step["content"]))
    metaspace = take("Metaspace")
    if metaspace and metaspace["prepend_scheme"] == "never":
        replacements.append((metaspace["replacement"], " "))
        metaspace = None
    has_byte_tokens = take("ByteFallback") is not None
    is_fused = take("Fuse") is not None
    strip = take("Strip") if is_fused else None
    if rest or (strip and strip["stop"]):
        return None
    return PieceRules(
        tuple(replacements),
        metaspace["replacement"] if metaspace else None,
        has_byte_tokens,
        (strip["content"], strip["start"]) if strip else ("", 0),
    )


def _first_pieces(tokens: list[str | None], rules: PieceRules) -> dict[int, str]:
    named = ((token_id, token) for token_id, token in enumerate(tokens) if token is not None)
    pieces = ((token_id, rules.piece(token, space=""), rules.piece(token)) for token_id, token in named)
    return {token_id: first for token_id, first, later in pieces if isinstance(first, str) and first != later}


def _byte_level_pieces(tokens: list[str | None], added: Container[int]) -> list[str | bytes]:
    """Returns texts or bytes of tokens. Added tokens are text, such as DeepSeek's `ü`, which the library garbles."""
    alphabet = {ord(char): byte for byte, char in enumerate(byte_level_alphabet())}
    byte_of_char = {**dict.fromkeys(range(256), NO_BYTE), **alphabet}
    joined = SEPARATOR.join([token or "" for token in tokens])  # one call is faster than one for each token
    pairs = zip(tokens, joined.translate(byte_of_char).split(SEPARATOR), strict=True)
    return [
        "" if token is None else token if token_id in added else _byte_level_piece(token, codes)
        for token_id, (token, codes) in enumerate(pairs)
    ]


def _byte_level_piece(token: str, codes: str) -> str | bytes:
    """Returns a token's text or bytes; `codes` are its bytes as characters. A token with a character outside the
    alphabet is plain text."""
    if codes.isascii():
        return codes
    try:
        data = codes.encode("latin-1")
    except UnicodeEncodeError:
        return token
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def byte_level_alphabet() -> list[str]:
    """Returns the character for each byte: the byte itself if it is printable, otherwise the next one from U+0100.

    The table of GPT-2 (`bytes_to_unicode` in openai/gpt-2, src/encoder.py).
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]
