"""Redacts frames: replaces the content of clients by placeholders of the same length and keeps everything else.

Texts and columns of token ids are replaced unless they are known to contain nothing of a client, so a field that is
added later is replaced, too. Vectors of prompts become zeros.
"""

import hashlib
import json
import secrets
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
HIDDEN_NUMBERS = frozenset({"values", "carried"})
"""Columns of floats from which a text could be guessed: vectors of pooled prompts."""

KEPT_TEXTS = frozenset({"receiver", "param", "code", "type"})
KEPT_WORDS = frozenset({"system", "user", "assistant", "tool", "text", "image", "function"})
"""Values of `role` and `type` in JSON objects, which chat templates check."""

TOKEN_NUMBERS = frozenset({"token_id", "stop_token_ids", "cached_token", "stop_reason"})
"""Fields with a single token id."""

PLACEHOLDER = "x"

CLIENT = "client"
_PSEUDONYM_KEY = secrets.token_bytes(16)
"""Clients get pseudonyms that are the same within one run of the program: a replay deals steps between them."""


def redact(message: T) -> T:
    """Returns the message with placeholders. JSON stays JSON with the same keys; token ids become 0."""
    return cast("T", _redact(message, None, ""))


def redact_file(source: Path, target: Path) -> None:
    """Writes the redacted frames of `source` to `target`. A frame that does not decode keeps only its header.

    Raises `FrameFileError` if `source` is not a file of frames.
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
    """`hint` and `name` are the type and the name of the field that holds `value`."""
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
    if name == CLIENT and value:
        return hashlib.blake2b(str(value).encode(), digest_size=8, key=_PSEUDONYM_KEY).hexdigest()
    if isinstance(value, str):
        return value if name in KEPT_TEXTS or _is_word(hint) else PLACEHOLDER * len(value)
    if isinstance(value, bytes):
        return _redact_bytes(value, hint, name)
    return 0 if name in TOKEN_NUMBERS and isinstance(value, int) else value


def _redact_bytes(value: bytes, hint: Any, name: str) -> bytes:
    typecode = typecode_of(hint)
    if typecode is not None:
        is_kept = name in KEPT_COLUMNS or (typecode != INT32 and name not in HIDDEN_NUMBERS)
        return value if is_kept else bytes(len(value))
    try:
        content = json.loads(value)
    except ValueError:
        content = None
    if isinstance(content, dict | list):
        return json.dumps(_redact(content, None, ""), separators=(",", ":")).encode()
    return PLACEHOLDER.encode() * len(value)


def _is_word(hint: Any) -> bool:
    """True if the field holds one of a fixed set of words."""
    return any(typing.get_origin(part) is Literal for part in (hint, *typing.get_args(hint)))
