"""Rows of spans without a device: each is a number that stands for the id of its token."""

import zlib
from array import array
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

from messages.columns import unpack_int32
from messages.ring.spans import DIGEST_BYTES, PromptSpan


def span_of(start: int, length: int, content: int = 0) -> PromptSpan:
    """Returns a span whose rows depend on `content` and `length`."""
    return PromptSpan(start, length, blake2b(b"%d,%d" % (content, length), digest_size=DIGEST_BYTES).digest())


def row_value(digest: bytes, index: int) -> int:
    """Returns the row of a span, which is the id of no token."""
    return -2 - zlib.crc32(b"%s,%d" % (digest, index)) % (1 << 30)


def embedded_ids(prompt: Sequence[int], spans: Sequence[PromptSpan]) -> list[int]:
    """Returns the ids of a prompt with the rows of its spans in place of the placeholders."""
    ids = list(prompt)
    for span in spans:
        ids[span.start : span.end] = [row_value(span.digest, index) for index in range(span.length)]
    return ids


class SimulatedSpanRows:
    """The same as `SpanRows`, with room for everything."""

    def __init__(self) -> None:
        self.find_needed: Callable[[], Collection[bytes]] = set
        self._places: dict[bytes, array[int]] = {}
        self._values: list[int] = []

    def place(self, span: PromptSpan) -> None:
        if span.digest not in self._places:
            self._places[span.digest] = array("i", range(len(self._values), len(self._values) + span.length))
            self._values += [row_value(span.digest, index) for index in range(span.length)]

    def find(self, digest: bytes) -> "array[int]":
        return self._places.get(digest, array("i"))

    def overwrite(self, token_ids: "array[int]", placed_rows: bytes) -> None:
        """Puts rows in place of the ids of their tokens."""
        for index, place in enumerate(unpack_int32(placed_rows)):
            if place >= 0:
                token_ids[index] = self._values[place]
