"""Frames without what clients have written and got: placeholders of the same length, all else as it is.

Every text and every column of token ids is replaced unless it is known to hold nothing of a client's, so a field that
is added later is replaced too.
"""

import json
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from messages.columns import INT32
from messages.frame_files import FrameReader, Record, write_frames
from messages.frames import HEADER
from messages.ring.plain import fields_of, typecode_of

T = TypeVar("T", bound=msgspec.Struct)

KEPT_COLUMNS = frozenset({"attempts", "num_tokens", "logprob_entries"})
KEPT_TEXTS = frozenset({"receiver", "param", "code", "type"})
KEPT_WORDS = frozenset({"system", "user", "assistant", "tool", "text", "function"})
"""Of the objects in JSON, whose `role` and `type` a chat template looks at."""

TOKEN_NUMBERS = frozenset({"token_id", "stop_token_ids", "cached_token", "stop_reason"})
"""Numbers that are token ids."""

PLACEHOLDER = "x"


def redact(message: T) -> T:
    """Returns the message with placeholders. JSON stays JSON with the same keys; token ids become 0."""
    return cast("T", _redact(message, None, ""))


def redact_file(source: Path, target: Path) -> None:
    """Writes `target`: the frames of `source` with placeholders. What cannot be decoded keeps its number alone.

    Raises `FrameFileError` where `source` is no file of frames.
    """
    reader = FrameReader(source)
    encoder = msgspec.msgpack.Encoder()
    write_frames(target, reader, [(record, _redact_frame(record, encoder)) for record in reader.read()])


def _redact_frame(record: Record, encoder: msgspec.msgpack.Encoder) -> bytes:
    number = record.frame[: HEADER.size]
    try:
        return number + encoder.encode(redact(record.decode()))
    except msgspec.DecodeError:
        return number


def _redact(value: Any, hint: Any, name: str) -> Any:
    """`hint` and `name` are those of the field that holds `value`."""
    if isinstance(value, msgspec.Struct):
        fields = fields_of(type(value)).items()
        return type(value)(**{field: _redact(getattr(value, field), own, field) for field, (_, own) in fields})
    if isinstance(value, tuple | list):
        (item_hint, *_) = typing.get_args(hint) or (None,)
        items = [_redact(item, item_hint, name) for item in cast("Sequence[Any]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {
            key: item if key in ("role", "type") and item in KEPT_WORDS else _redact(item, None, "")
            for key, item in pairs
        }
    if isinstance(value, str):
        return value if name in KEPT_TEXTS or _is_word(hint) else PLACEHOLDER * len(value)
    if isinstance(value, bytes):
        return _redact_bytes(value, hint, name)
    return 0 if name in TOKEN_NUMBERS and isinstance(value, int) else value


def _redact_bytes(value: bytes, hint: Any, name: str) -> bytes:
    typecode = typecode_of(hint)
    if typecode is not None:
        return value if name in KEPT_COLUMNS or typecode != INT32 else bytes(len(value))
    try:
        content = json.loads(value)
    except ValueError:
        content = None
    if isinstance(content, dict | list):
        return json.dumps(_redact(content, None, ""), separators=(",", ":")).encode()
    return PLACEHOLDER.encode() * len(value)


def _is_word(hint: Any) -> bool:
    """Tells whether the field holds one of some words of ours."""
    return any(typing.get_origin(part) is Literal for part in (hint, *typing.get_args(hint)))
