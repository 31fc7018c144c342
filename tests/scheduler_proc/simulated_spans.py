"""Rows of spans without a device: each is a number that stands for the id of its token; and encoders that make them."""

import zlib
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b

from messages.columns import unpack_int32
from messages.errors import ErrorInfo
from messages.ring.encodings import (
    KEY_BYTES,
    ROW_NOTE,
    EncodeImage,
    EncoderStarted,
    EngineStarted,
    ForgetImage,
    ImageEncoded,
    OpenAsks,
)
from messages.ring.images import ImageInput
from messages.ring.spans import ALL_POSITIONS, DIGEST_BYTES, PromptSpan

MAX_ROWS = 4096


def span_of(start: int, length: int, content: int = 0) -> PromptSpan:
    """Returns a span whose rows depend on `content` and `length`."""
    return PromptSpan(start, length, blake2b(b"%d,%d" % (content, length), digest_size=DIGEST_BYTES).digest())


def image_of(content: int) -> ImageInput:
    return ImageInput(blake2b(b"%d" % content, digest_size=DIGEST_BYTES).digest(), 64, 48, param=f"messages[{content}]")


def image_span(start: int, length: int, image: ImageInput, index: int = 0, **fields: object) -> PromptSpan:
    return PromptSpan(start, length, image.encoding_digest(), "image", index, **fields)  # pyright: ignore[reportArgumentType]


def row_value(digest: bytes, index: int) -> int:
    """Returns the row of a span, which is the id of no token."""
    return -2 - zlib.crc32(b"%s,%d" % (digest, index)) % (1 << 30)


def embedded_ids(prompt: Sequence[int], spans: Sequence[PromptSpan]) -> list[int]:
    """Returns the ids of a prompt with the rows of its spans in place of the placeholders."""
    ids = list(prompt)
    for span in spans:
        places = [at for at in range(span.start, span.end) if span.placeholder in (ALL_POSITIONS, prompt[at])]
        for index, place in enumerate(places):
            ids[place] = row_value(span.digest, index)
    return ids


class SimulatedSpanRows:
    """The same as `SpanRows`. With `notes` and `values` of a predecessor it takes these over."""

    row_bytes = 4

    def __init__(self, num_rows: int = MAX_ROWS, before: "SimulatedSpanRows | None" = None) -> None:
        self.num_rows = num_rows
        self.reserve: Callable[[bytes, int], array[int]]
        self.values = [0] * num_rows if before is None else before.values
        self.notes = memoryview(bytearray(num_rows * ROW_NOTE.size)) if before is None else before.notes

    def checksum(self, places: Sequence[int]) -> int:
        return zlib.crc32(repr([self.values[place] for place in places]).encode())

    def load(self, places: Sequence[int]) -> None:
        pass

    def place(self, span: PromptSpan) -> None:
        for index, place in enumerate(self.reserve(span.digest, span.length)):
            self.values[place] = row_value(span.digest, index)

    def overwrite(self, token_ids: "array[int]", placed_rows: bytes) -> None:
        """Puts rows in place of the ids of their tokens."""
        for index, place in enumerate(unpack_int32(placed_rows)):
            if place >= 0:
                token_ids[index] = self.values[place]


class SimulatedEncoders:
    """Encoders that do nothing until they are asked to. `open` has what they have got, in order, with its encoder."""

    engine = 1

    def __init__(self, rows: SimulatedSpanRows):
        self.rows = rows
        self.open: list[tuple[str, EncodeImage]] = []
        self.forgotten: list[int] = []
        self.found: set[str] | None = None
        self.answers: list[ImageEncoded | EncoderStarted] = []
        """To what was sent after the latest `look`."""

    def send(self, encoder: str, message: EncodeImage | ForgetImage | OpenAsks | EngineStarted) -> None:
        match message:
            case EncodeImage():
                self.open.append((encoder, message))
            case ForgetImage():
                self.forgotten.append(message.ask)
            case OpenAsks():
                known = {each.ask for name, each in self.open if name == encoder}
                self.answers += [ImageEncoded(ask) for ask in message.asks if ask not in known]
            case EngineStarted():
                self.answers.append(self.die(encoder))

    def look(self) -> set[str] | None:
        found, self.found = self.found, None
        return found

    def answer(self, error: ErrorInfo | None = None) -> ImageEncoded:
        """Encodes the first image that was asked for, unless it was forgotten, and returns the answer."""
        _, message = self.open.pop(0)
        places = unpack_int32(message.places)
        if error is not None or message.ask in self.forgotten:
            return ImageEncoded(message.ask, error=error)
        for index, place in enumerate(places):
            key, number, ask, _ = ROW_NOTE.unpack_from(self.rows.notes, place * ROW_NOTE.size)
            assert (len(key), number, ask) == (KEY_BYTES, index, message.ask), "the places are another ask's"
            self.rows.values[place] = row_value(message.image.encoding_digest(), index)
        return ImageEncoded(message.ask, len(places), self.rows.checksum(places), 0.1)

    def die(self, encoder: str = "encoder", suspect: bytes = b"") -> EncoderStarted:
        """Loses what this encoder was asked for, and returns what its successor sends."""
        self.open = [(name, message) for name, message in self.open if name != encoder]
        return EncoderStarted(encoder, suspect)
