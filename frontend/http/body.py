"""Request bodies: read within bounds, decoded strictly, refused with a message that names what is wrong."""

import asyncio
import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from messages.errors import ErrorInfo, RequestError, bad_request

T = TypeVar("T", bound=msgspec.Struct)

BODY_TIMEOUT_S = 120.0
MISSPELLING_CUTOFF = 0.8
"""Similarity (difflib's ratio) from which an unknown field is taken for a misspelled one."""

JSON_TYPE = "application/json"
MAX_SHOWN_CHARS = 60

_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_KEY = re.compile(rb'\s*[{,]\s*"(?:[^"\\]|\\.)*"\s*:\s*', re.DOTALL)
_END = re.compile(rb"\s*}\s*")
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.(\w+)(.*)`$")


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Returns the request's body.

    Raises `RequestError`: 413 over `limit_bytes` (before reading where the length is announced), 415 for one that is
    compressed or not JSON by its media type, 408 where it does not arrive in time; `ClientDisconnect` where the client
    leaves.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(ErrorInfo(415, f"Content-Encoding {encoding!r} is not supported, send the body as it is"))
    _check_media_type(request.headers)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read(request, limit_bytes)
    except TimeoutError:
        raise RequestError(ErrorInfo(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s")) from None


def _check_media_type(headers: Headers) -> None:
    """A body without a media type is refused: a browser sends one for any page, without a preflight."""
    content_type = headers.get("content-type")
    if content_type is None:
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            raise RequestError(ErrorInfo(415, f"a body needs a Content-Type, send {JSON_TYPE}"))
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != JSON_TYPE and not media_type.endswith("+json"):
        raise RequestError(
            ErrorInfo(415, f"Content-Type {media_type[:MAX_SHOWN_CHARS]!r} is not supported, send {JSON_TYPE}")
        )


async def _read(request: Request, limit_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message["body"]
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        if not message["more_body"]:
            return bytes(body)


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(ErrorInfo(413, f"the body is larger than {limit_bytes} bytes", code="body_too_large"))


class BodyDecoder(Generic[T]):
    """Decodes bodies into `struct`, whose fields each carry a `Meta` description of what they take.

    `refused` names parameters that exist but are not served, each with the values that mean the same as its absence;
    `ignored` those that make no difference. An unknown name is ignored too, unless it looks like a misspelled one.
    """

    def __init__(
        self, struct: type[T], refused: Mapping[str, tuple[Any, ...]] | None = None, ignored: Iterable[str] = ()
    ):
        self._decoder = msgspec.json.Decoder(struct)
        self._refused = refused or {}
        self._ignored = frozenset(ignored)
        hints = typing.get_type_hints(struct, include_extras=True)
        self._expected = {name: _description(hints[name]) for name in struct.__struct_fields__}
        self._known = [*self._expected, *self._refused]

    def decode(self, body: bytes) -> T:
        """Returns the decoded body. Raises `RequestError` (400)."""
        fields = _split(body)
        for name, raw in fields.items():
            self._check_name(name, raw)
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise self._explain(error, fields) from None
        except msgspec.DecodeError as error:
            raise _malformed(error) from None

    def _check_name(self, name: str, raw: Raw) -> None:
        if name in self._expected or name in self._ignored:
            return
        if name in self._refused:
            value = msgspec.json.decode(raw)
            if value is not None and not any(_is_same(value, neutral) for neutral in self._refused[name]):
                raise bad_request(f"{name} is not supported, got {_shown(raw)}", name, "not_supported")
            return
        nearest = difflib.get_close_matches(name, self._known, n=1, cutoff=MISSPELLING_CUTOFF)
        if nearest:
            raise bad_request(f"unknown field {name[:MAX_SHOWN_CHARS]!r}: did you mean {nearest[0]}?", name[:128])

    def _explain(self, error: msgspec.ValidationError, fields: Mapping[str, Raw]) -> RequestError:
        place = _PLACE.search(str(error))
        if place is None:
            missing = re.search(r"missing required field `(\w+)`", str(error))
            return bad_request(f"{missing[1]} is required", missing[1]) if missing else _malformed(error)
        name, inner = place.groups()
        where = f" (at {name}{inner})" if inner else ""
        return bad_request(f"{name} must be {self._expected[name]}, got {_shown(fields[name])}{where}", name)


def _split(body: bytes) -> dict[str, Raw]:
    """Returns the top level of `body`, its values still encoded. Raises `RequestError` (400) where it is not sound."""
    try:
        body.decode("utf-8")
        fields = _FIELDS.decode(body)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not valid UTF-8 (byte {error.start})", code="malformed_json") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply", code="malformed_json") from None
    except msgspec.ValidationError:
        raise bad_request("the body must be a JSON object", code="malformed_json") from None
    except msgspec.DecodeError as error:
        raise _malformed(error) from None
    _check_duplicates(body, fields)
    return fields


def _check_duplicates(body: bytes, fields: Mapping[str, Raw]) -> None:
    """Walks the body field by field: where a name comes twice, the values kept by the decoder no longer line up."""
    at = 0
    for value in fields.values():
        key = _KEY.match(body, at)
        encoded = bytes(value)
        if key is None or not body.startswith(encoded, key.end()):
            raise _duplicate(body, at)
        at = key.end() + len(encoded)
    if fields and not _END.fullmatch(body, at):
        raise _duplicate(body, at)


def _duplicate(body: bytes, at: int) -> RequestError:
    key = _KEY.match(body, at)
    name = key.group().decode().strip(" \t\r\n{,:") if key else "a field"
    return bad_request(f"{name[:MAX_SHOWN_CHARS]} is given more than once", code="duplicate_field")


def _malformed(error: msgspec.DecodeError) -> RequestError:
    return bad_request(f"the body is not valid JSON: {error}", code="malformed_json")


def _description(hint: Any) -> str:
    texts = [part.description for part in typing.get_args(hint) if isinstance(part, Meta)]
    assert texts
    assert texts[0], f"{hint} has no description"
    return texts[0]


def _shown(raw: Raw) -> str:
    text = bytes(memoryview(raw)[: MAX_SHOWN_CHARS * 4]).decode(errors="replace")
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _is_same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
