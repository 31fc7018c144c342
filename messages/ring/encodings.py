"""Messages between schedulers and encoders about the encodings of images, and the notes in the file of their rows."""

import struct

import msgspec

from messages.columns import Int32s
from messages.errors import ErrorInfo
from messages.ring.images import IMAGE_DIGEST_BYTES, ImageInput

NUM_ROWS = struct.Struct("<I")
KEY_BYTES = IMAGE_DIGEST_BYTES + NUM_ROWS.size

ROW_NOTE = struct.Struct(f"<{KEY_BYTES}sIQQ")
"""A note per row of the file: the key of its encoding, its index in it, the ask that may write it, a checksum.

The ask is 0 once all rows of the encoding are written; the checksum is that of the whole encoding.
"""


def key_of(digest: bytes, num_rows: int) -> bytes:
    """Returns what identifies an encoding: the digest of its span (`PromptSpan.digest`) and its number of rows."""
    return digest + NUM_ROWS.pack(num_rows)


def num_rows_of(key: bytes) -> int:
    return NUM_ROWS.unpack_from(key, IMAGE_DIGEST_BYTES)[0]


class EncodeImage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → encoder: write the rows of an image to these places of the engine's file. Answered `ImageEncoded`.

    The notes of the places have the number of the `ask`; the encoder writes nothing to places with another one.
    """

    ask: int
    engine: int
    image: ImageInput
    num_images: int
    """In its prompt; the layout may depend on it."""
    places: Int32s


class ForgetImage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → encoder: no request needs the image any more. Its `ImageEncoded` has no rows, unless it has begun."""

    ask: int
    engine: int


class EngineStarted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → encoder: forget what a predecessor of this engine has asked for, and answer `EncoderStarted`."""

    engine: int


class OpenAsks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → encoder, every second: what it waits for. Each ask that the encoder does not know was lost, or its
    answer was, and is answered by an `ImageEncoded` without rows.
    """

    engine: int
    asks: tuple[int, ...]


class ImageEncoded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """encoder → scheduler: the rows are written, or there are none: because of an `error`, or as the image was
    forgotten or the ask lost.
    """

    ask: int
    num_rows: int = 0
    checksum: int = 0
    """xxh3 of the rows, in their order."""
    seconds: float = 0.0
    error: ErrorInfo | None = None


class EncoderStarted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """encoder → scheduler: it takes images now, and has forgotten what it was asked for before.

    `suspect`: the encoding digest of the image during which its predecessor died, if it did.
    """

    encoder: str
    suspect: bytes = b""


FromEncoder = ImageEncoded | EncoderStarted
