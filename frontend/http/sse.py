"""The encoding of server-sent events."""

import msgspec

from frontend.errors import error_body
from messages.errors import ErrorInfo

CONTENT_TYPE = b"text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

LINE_ENDS = tuple((chr(code).encode(), rb"\u%04x" % code) for code in (0x85, 0x2028, 0x2029))
"""Characters that JSON allows unescaped but at which some clients split lines. They occur only in strings, so they can
be escaped."""

_encoder = msgspec.json.Encoder()


def frame(event: msgspec.Struct) -> bytes:
    """Returns the event as `data: {json}` and an empty line."""
    encoded = _encoder.encode(event)
    return b"data: %b\n\n" % (encoded if encoded.isascii() else _one_line(encoded))


def named_frame(name: str, event: msgspec.Struct) -> bytes:
    """Returns the event with a name, for APIs that name their events."""
    return b"event: %b\n%b" % (name.encode(), frame(event))


def comment(name: str, content: msgspec.Struct) -> bytes:
    """Returns a comment, which clients of events ignore: `: name {json}`."""
    return b": %b %b\n\n" % (name.encode(), _encoder.encode(content))


def error_frame(info: ErrorInfo) -> bytes:
    """Returns the frame that ends a stream after an error; `DONE` follows it."""
    return frame(error_body(info))


class FrameForm:
    """The frames of events that differ only in one string; everything around it is encoded once.

    `event` is such an event with `MARK` as the string.
    """

    MARK = "\N{OBJECT REPLACEMENT CHARACTER}mark"

    def __init__(self, event: msgspec.Struct):
        self._head, self._tail = frame(event).split(_encoder.encode(self.MARK))

    def frame(self, text: str) -> bytes:
        """Returns the frame of the event with `text`."""
        encoded = _encoder.encode(text)
        return b"%b%b%b" % (self._head, encoded if encoded.isascii() else _one_line(encoded), self._tail)


def _one_line(encoded: bytes) -> bytes:
    for character, escape in LINE_ENDS:
        encoded = encoded.replace(character, escape)
    return encoded
