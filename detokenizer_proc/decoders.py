"""Token ids to text, one at a time: the increments joined are the decoding of all ids at once.

Text that a later token could still change is held back, so no increment ends inside a character. One decoder serves one
stream. `hidden` are the ids that are left out, the special tokens of a stream that skips them.

A decoder may be given the end of the prompt first, whose text is dropped, so that the output is read as what follows:
its first token keeps its space, and completes a character whose beginning the prompt ends with (as in vLLM's decoder).
"""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Protocol

from messages.ring.replies import NUM_CONTEXT_TOKENS


class Decoder(Protocol):
    """The state of one stream."""

    def push(self, token_id: int) -> str:
        """Returns the text that is certain with this token and was not before, often all of the token's."""
        ...

    def finish(self) -> str:
        """Returns what was held back; no token follows."""
        ...

    def settle(self) -> str:
        """Returns what was held back but the beginning of a character: what follows belongs to another text."""
        ...

    def num_held_before(self, token_id: int) -> int:
        """Returns how many characters that are held back come before the first one to which `token_id` would add."""
        ...


class ByteLevelDecoder:
    """Tokens are bytes (GPT-2, Llama 3, Qwen): their concatenation is read as UTF-8, each broken part as U+FFFD.

    `pieces`, by token id: the text of a token that is whole characters, else its bytes; "" for an id without a token.
    """

    __slots__ = ("_hidden", "_pending", "_pieces")

    def __init__(self, pieces: Sequence[str | bytes], hidden: frozenset[int]):
        self._pieces = pieces
        self._hidden = hidden
        self._pending = b""
        """The beginning of a character, at most 3 bytes."""

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        piece = self._pieces[token_id]
        if isinstance(piece, str):
            if not self._pending:
                return piece
            piece = piece.encode()
        text, num_bytes_used = utf_8_decode(self._pending + piece, "replace", False)
        self._pending = (self._pending + piece)[num_bytes_used:]
        return text

    def finish(self) -> str:
        text = self._pending.decode(errors="replace")
        self._pending = b""
        return text

    def settle(self) -> str:
        return ""

    def num_held_before(self, token_id: int) -> int:
        if not self._pending or token_id in self._hidden:
            return 0
        piece = self._pieces[token_id]
        data = self._pending + (piece.encode() if isinstance(piece, str) else piece)[:1]
        # A whole character and the beginning of one count as one; a surrogate's beginning, which is held too, as more.
        continues = len(data.decode(errors="replace")) == 1
        return 0 if continues else len(self._pending.decode(errors="replace"))


class PieceDecoder:
    """Tokens are text, but for tokens of one byte (Llama 2, Gemma: `<0xE2>`).

    A run of byte tokens is read as UTF-8 when it ends; a run with a flaw is one U+FFFD for each of its bytes. So the
    run is what is held back.

    `pieces`, by token id: text, or the value of a byte token, or `None` for an id without a token. `first_pieces`: the
    ids whose text is another one where the first token of the stream is. `strip`: a character and how many of it are
    cut off the beginning of the text.
    """

    __slots__ = ("_first_pieces", "_hidden", "_num_to_strip", "_pieces", "_run", "_strip_char")

    def __init__(
        self,
        pieces: Sequence[str | int | None],
        hidden: frozenset[int],
        first_pieces: dict[int, str],
        strip: tuple[str, int],
    ):
        self._pieces = pieces
        self._hidden = hidden
        self._first_pieces: dict[int, str] | None = first_pieces or None
        self._strip_char, self._num_to_strip = strip
        self._run = bytearray()

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if piece is None or token_id in self._hidden:
            return ""
        if self._first_pieces is not None:
            piece = self._first_pieces.get(token_id, piece)
            self._first_pieces = None
        if isinstance(piece, int):
            self._run.append(piece)
            return ""
        if self._run:
            piece = self._take_run() + piece
        return self._strip(piece) if self._num_to_strip else piece

    def finish(self) -> str:
        return self._strip(self._take_run())

    def settle(self) -> str:
        num_unfinished = _num_unfinished(self._run)
        unfinished = self._run[len(self._run) - num_unfinished :]
        del self._run[len(self._run) - num_unfinished :]
        text = self.finish()
        self._run = unfinished
        return text

    def num_held_before(self, token_id: int) -> int:
        """Takes a run as it is so far: a flaw in it may show later, and then there are more characters than it said."""
        if not self._run or token_id in self._hidden:
            return 0
        piece = self._pieces[token_id]
        try:
            text, num_bytes_used = utf_8_decode(self._run, "strict", False)
        except UnicodeDecodeError:
            return len(self._run)
        is_broken = num_bytes_used < len(self._run) and isinstance(piece, str)
        return len(self._run) if is_broken else len(text)

    def _take_run(self) -> str:
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = "\ufffd" * len(self._run)
        self._run.clear()
        return text

    def _strip(self, text: str) -> str:
        while self._num_to_strip and text:
            if not text.startswith(self._strip_char):
                self._num_to_strip = 0
                break
            text = text[1:]
            self._num_to_strip -= 1
        return text


def _num_unfinished(data: bytearray) -> int:
    """Returns how many of the last bytes are the beginning of a UTF-8 character, 0 where the last one is whole."""
    for num_bytes in range(1, min(3, len(data)) + 1):
        lead = data[-num_bytes]
        if lead >= 0xC0:
            return num_bytes if num_bytes < 2 + (lead >= 0xE0) + (lead >= 0xF0) else 0
        if lead < 0x80:
            return 0
    return 0


class WindowDecoder:
    """Tokens are what `decode` says: for decoders whose rules are not known here.

    The text of a token is how much longer the decoding of the last few tokens gets by it. That is the decoding of all
    ids where the text of a token depends on no token farther away than `NUM_CONTEXT_TOKENS`. U+FFFD at the end of the
    text is held back for as many tokens, since a character may come of it.

    `decode` gets the ids of existing tokens that are not hidden.
    """

    __slots__ = ("_decode", "_hidden", "_num_shown", "_window")

    def __init__(self, decode: Callable[[list[int]], str], hidden: frozenset[int]):
        self._decode = decode
        self._hidden = hidden
        self._window: list[int] = []
        self._num_shown = 0
        """Characters of the window's text that have been returned."""

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        certain = text.rstrip("\ufffd") if len(self._window) < 4 * NUM_CONTEXT_TOKENS else text
        increment = certain[self._num_shown :]
        self._num_shown = max(self._num_shown, len(certain))
        if len(self._window) >= 2 * NUM_CONTEXT_TOKENS and self._num_shown == len(text):
            self._shorten()
        return increment

    def finish(self) -> str:
        text = self._decode(self._window) if self._window else ""
        increment = text[self._num_shown :]
        self._num_shown = len(text)
        return increment

    def settle(self) -> str:
        return ""

    def num_held_before(self, token_id: int) -> int:
        return 0

    def _shorten(self) -> None:
        """Forgets the older tokens, but only where the rest has letters: a decoder may treat a text's start apart."""
        rest = self._window[-NUM_CONTEXT_TOKENS:]
        text = self._decode(rest)
        if text.strip():
            self._window, self._num_shown = rest, len(text)


class CountingDecoder:
    """A decoder that knows how many characters it has returned, for streams whose tokens are shown with their place."""

    __slots__ = ("_decoder", "_num_chars")

    def __init__(self, decoder: Decoder):
        self._decoder = decoder
        self._num_chars = 0

    def push(self, token_id: int) -> str:
        text = self._decoder.push(token_id)
        self._num_chars += len(text)
        return text

    def finish(self) -> str:
        return self._decoder.finish()

    def settle(self) -> str:
        text = self._decoder.settle()
        self._num_chars = 0
        return text

    def num_held_before(self, token_id: int) -> int:
        return self._decoder.num_held_before(token_id)

    def offset_of(self, token_id: int) -> int:
        """Returns how many characters come before the first one to which `token_id` would add, since `settle`."""
        return self._num_chars + self._decoder.num_held_before(token_id)
