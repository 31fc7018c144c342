"""Decodes token ids to text one at a time. The increments add up to the decoding of all ids at once.

Text that a later token could still change is held back, so no increment ends inside a character. Each stream has its
own decoder. `hidden` are the ids that are left out: the special tokens of a stream that skips them.

A decoder may be given the end of the prompt first, whose text is dropped. Then the output is decoded as its
continuation: its first token keeps its space and completes a character that the prompt has begun (as in vLLM).
"""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence

from messages.ring.replies import NUM_CONTEXT_TOKENS


class Decoder:
    """The state of one stream. By default it holds back no text that belongs to one token alone."""

    __slots__ = ()

    def push(self, token_id: int) -> str:
        """Returns the text that this token completes: usually its own, unless it ends inside a character."""
        raise NotImplementedError

    def finish(self) -> str:
        """Returns the text that was held back; no token follows."""
        raise NotImplementedError

    def settle(self) -> str:
        """Returns the text that was held back, except an incomplete character: later tokens belong to another text."""
        return ""

    def num_held_before(self, token_id: int) -> int:
        """Returns the number of held characters before the first one to which `token_id` would add."""
        return 0


class ByteLevelDecoder(Decoder):
    """Tokens are bytes (GPT-2, Llama 3, Qwen): their concatenation is decoded as UTF-8, invalid parts as U+FFFD.

    `pieces`, by token id: a token's text if it has only complete characters, otherwise its bytes; "" without a token.
    """

    __slots__ = ("_hidden", "_pending", "_pieces")

    def __init__(self, pieces: Sequence[str | bytes], hidden: frozenset[int]):
        self._pieces = pieces
        self._hidden = hidden
        self._pending = b""
        """An incomplete character, at most 3 bytes."""

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

    def num_held_before(self, token_id: int) -> int:
        if not self._pending or token_id in self._hidden:
            return 0
        piece = self._pieces[token_id]
        data = self._pending + (piece.encode() if isinstance(piece, str) else piece)[:1]
        # A complete or incomplete character counts as one; an incomplete surrogate, which is also held, counts as more.
        continues = len(data.decode(errors="replace")) == 1
        return 0 if continues else len(self._pending.decode(errors="replace"))


class PieceDecoder(Decoder):
    """Tokens are text, except tokens of a single byte (Llama 2, Gemma: `<0xE2>`).

    A run of byte tokens is held back until it ends, then decoded as UTF-8. An invalid run becomes one U+FFFD per byte.

    `pieces`, by token id: text, the value of a byte token, or `None` without a token. `first_pieces`: the texts of
    tokens that differ at the beginning of the stream. `strip`: a character, and the maximum number of times that it is
    removed from the beginning of the text.
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
        """Judges the run by its bytes so far: if it turns out invalid later, it has more characters than returned."""
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
    """Returns how many of the last bytes belong to an incomplete UTF-8 character, 0 if there is none."""
    for num_bytes in range(1, min(3, len(data)) + 1):
        lead = data[-num_bytes]
        if lead >= 0xC0:
            return num_bytes if num_bytes < 2 + (lead >= 0xE0) + (lead >= 0xF0) else 0
        if lead < 0x80:
            return 0
    return 0


class WindowDecoder(Decoder):
    """Decodes with `decode`, for decoders with unknown rules.

    The text of a token is what it adds to the decoding of the last few tokens. This equals the decoding of all ids if
    the text of a token depends on no token farther away than `NUM_CONTEXT_TOKENS`. U+FFFD at the end of the text is
    held back for some tokens, since it may become a character.

    `decode` gets only ids of existing tokens that are not hidden.
    """

    __slots__ = ("_decode", "_hidden", "_num_shown", "_window")

    def __init__(self, decode: Callable[[list[int]], str], hidden: frozenset[int]):
        self._decode = decode
        self._hidden = hidden
        self._window: list[int] = []
        self._num_shown = 0
        """Number of characters of the window's text that have been returned."""

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

    def _shorten(self) -> None:
        """Drops the older tokens if the rest is not blank: a decoder may treat the start of a text specially."""
        rest = self._window[-NUM_CONTEXT_TOKENS:]
        text = self._decode(rest)
        if text.strip():
            self._window, self._num_shown = rest, len(text)


class CountingDecoder(Decoder):
    """A decoder that counts the characters it has returned, for streams that report the offset of each token."""

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

    def offset_of(self, token_id: int) -> int:
        """Returns the number of characters, since `settle`, before the first one to which `token_id` would add."""
        return self._num_chars + self._decoder.num_held_before(token_id)
