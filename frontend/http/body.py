"""Request bodies: bounded reading, strict decoding, and error messages that name the mistake."""

import asyncio
import re
import typing
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Raw
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from frontend.http.field_names import FieldNames, NameRules, UnknownFields, shown
from frontend.http.places import explain_inside
from frontend.requests.trace import trace_of
from messages.errors import ErrorInfo, RequestError, bad_request, cut, cut_value, quoted

HALF_PAIR = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+(\\u[dD][89a-fA-F][\da-fA-F]{2})"
)
"""Finds the first unpaired surrogate escape; clients that cut texts within a character send one."""

T = TypeVar("T", bound=msgspec.Struct)

BODY_TIMEOUT_S = 120.0
SILENCE_TIMEOUT_S = 20.0
"""The longest pause between two pieces of a body, which occupies memory during the pause."""

JSON_TYPE = "application/json"
MAX_CONTAINERS = 1 << 17
"""Maximum lists and objects in a body; each takes a few microseconds to validate and convert."""

SMALL_BODY_BYTES = 65536
"""The limit for bodies without prompts."""

MAX_FIELDS = 128
"""Maximum fields in a body: each unknown field is compared with all known ones."""


async def read_body(request: Request, limit_bytes: int, *, needs_type: bool = True) -> bytes:
    """Returns the request's body.

    It is held in memory until the response is over. Without `needs_type`, its media type is not checked: the clients of
    some APIs send none. Raises `RequestError`: 503 if other bodies leave no room for it,
    413 if it exceeds `limit_bytes` (before reading if its length is announced), 415 if it is compressed or its media
    type is not JSON, 408 if it does not arrive in time. Raises `ClientDisconnect` if the client leaves.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(
            ErrorInfo(415, f"Content-Encoding {quoted(encoding)} is not supported, send it uncompressed")
        )
    if needs_type:
        _check_media_type(request.headers)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(SILENCE_TIMEOUT_S) as silence:
            body = await _read(request, limit_bytes, silence)
    except TimeoutError:
        limits = f"within {BODY_TIMEOUT_S:.0f} s, or nothing of it for {SILENCE_TIMEOUT_S:.0f} s"
        raise RequestError(ErrorInfo(408, f"the body did not arrive {limits}")) from None
    await trace_of(request.scope).body.take_turn()
    return body


def _check_media_type(headers: Headers) -> None:
    """A body without a media type is refused: a browser sends one for any page, without a preflight."""
    content_type = headers.get("content-type")
    if content_type is None:
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            raise RequestError(ErrorInfo(415, f"a body needs a Content-Type, send {JSON_TYPE}"))
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != JSON_TYPE and not media_type.endswith("+json"):
        raise RequestError(ErrorInfo(415, f"Content-Type {quoted(media_type)} is not supported, send {JSON_TYPE}"))


async def _read(request: Request, limit_bytes: int, silence: asyncio.Timeout) -> bytes:
    body, held = bytearray(), trace_of(request.scope).body
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + BODY_TIMEOUT_S
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if len(body) + len(message["body"]) > limit_bytes:
            raise _too_large(limit_bytes)
        held.grow(len(message["body"]))
        body += message["body"]
        if not message["more_body"]:
            return bytes(body)
        silence.reschedule(min(end_s, now_s() + SILENCE_TIMEOUT_S))


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(ErrorInfo(413, f"the body is larger than {limit_bytes} bytes", code="body_too_large"))


class DecodedBody(NamedTuple, Generic[T]):
    """A body, and a warning for each of its fields that is ignored."""

    fields: T
    warnings: list[str]


class BodyDecoder(Generic[T]):
    """Decodes bodies into `struct`, whose fields each have a `Meta` description of their values.

    `rules` decide how other names are treated, `unknown` how names are treated that no server uses. Names that look
    like misspellings are refused. `receive` refuses bodies of more than `max_bytes`.
    """

    def __init__(
        self,
        struct: type[T],
        rules: NameRules | None = None,
        unknown: UnknownFields | None = None,
        *,
        max_bytes: int = SMALL_BODY_BYTES,
        needs_type: bool = True,
    ):
        self._max_bytes = max_bytes
        self._needs_type = needs_type
        self._decoder = msgspec.json.Decoder(struct)
        hints = typing.get_type_hints(struct, include_extras=True)
        self._hints = {name: hints[name] for name in struct.__struct_fields__}
        self._expected = {name: _description(hint) for name, hint in self._hints.items()}
        self._required = [field.name for field in msgspec.structs.fields(struct) if field.required]
        self._names = FieldNames(self._expected, rules or NameRules(), unknown or UnknownFields())

    async def receive(self, request: Request) -> DecodedBody[T]:
        """Reads the body of a request, as `read_body` does, and decodes it. Raises `RequestError`."""
        return self.read(await read_body(request, self._max_bytes, needs_type=self._needs_type))

    def decode(self, body: bytes) -> T:
        """Returns the decoded body. Raises `RequestError` (400)."""
        return self.read(body).fields

    def read(self, body: bytes) -> DecodedBody[T]:
        """Returns the decoded body and its warnings. Raises `RequestError` (400)."""
        fields = _SPLITTER.split(body)
        _check_containers(body, fields)
        if hoisted := self._names.hoist(fields):
            fields |= hoisted
            body = msgspec.json.encode(fields)
        warnings = self._names.check(fields)
        sent_names = self._names.rename(fields)
        if sent_names:
            renamed = {own: fields[name] for own, name in sent_names.items()}
            fields = {name: raw for name, raw in fields.items() if name not in sent_names.values()} | renamed
            body = msgspec.json.encode(fields)
        try:
            return DecodedBody(self._decoder.decode(body), warnings)
        except msgspec.ValidationError as error:
            raise self._explain(error, fields, sent_names) from None
        except msgspec.DecodeError as error:
            raise _malformed(error, body) from None

    def _explain(
        self, error: msgspec.ValidationError, fields: Mapping[str, Raw], sent_names: Mapping[str, str]
    ) -> RequestError:
        """Returns the error for the first invalid field, under the name that the client used."""
        for own, raw in fields.items():
            if own not in self._hints:
                continue
            try:
                msgspec.json.decode(raw, type=self._hints[own])
            except msgspec.ValidationError as of_field:
                name = sent_names.get(own, own)
                words, _, inner = cut_value(str(of_field)).partition(" - at `$")
                expected = f"{name} must be {self._expected[own]}"
                inner = inner.rstrip("`")
                explained = explain_inside(name + inner, inner, words, raw)
                if explained:
                    return bad_request(f"{explained}; {expected}", name)
                where = f" (at {name}{inner})" if inner else ""
                return bad_request(f"{expected}, got {shown(raw)}{where}", name)
        for name in self._required:
            if name not in fields:
                return bad_request(f"{name} is required", name)
        return _malformed(error)


def _check_containers(body: bytes, fields: Mapping[str, Raw]) -> None:
    """Raises `RequestError` (400) for more lists and objects than this process can check without delaying others."""
    if _count_containers(body) <= MAX_CONTAINERS:
        return
    values = (bytes(raw) for raw in fields.values())
    num_containers = sum(_count_containers(value) for value in values if not value.startswith(b'"'))
    if num_containers > MAX_CONTAINERS:
        raise bad_request(
            f"the body may have {MAX_CONTAINERS} lists and objects, got {num_containers} "
            "(each [ and { counts, even within strings)"
        )


def _count_containers(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


class _Name:
    """One name in a body. No two are equal, so a repeated field does not replace the first one."""


class _Splitter:
    """Decodes the top level of bodies, one at a time."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._decoder = msgspec.json.Decoder(dict[_Name, Raw], dec_hook=self._record_name)

    def split(self, body: bytes) -> dict[str, Raw]:
        """Returns the fields of `body`, their values still encoded. Raises `RequestError` (400)."""
        self._names.clear()
        try:
            body.decode("utf-8")
            values = self._decoder.decode(body).values()
        except UnicodeDecodeError as error:
            raise bad_request(f"the body is not valid UTF-8 (byte {error.start})", code="malformed_json") from None
        except RecursionError:
            raise bad_request("the body is nested too deeply", code="malformed_json") from None
        except msgspec.ValidationError:
            raise bad_request("the body must be a JSON object", code="malformed_json") from None
        except msgspec.DecodeError as error:
            raise _malformed(error, body) from None
        return dict(zip(self._names, values, strict=True))

    def _record_name(self, kind: type[_Name], name: str) -> _Name:
        if name in self._names:
            raise bad_request(f'"{cut(name)}" is given more than once', code="duplicate_field")
        if len(self._names) == MAX_FIELDS:
            raise bad_request(f"the body has more than {MAX_FIELDS} fields")
        self._names.append(name)
        return kind()


_SPLITTER = _Splitter()


def _malformed(error: msgspec.DecodeError, body: bytes = b"") -> RequestError:
    lone = HALF_PAIR.match(body)
    reason = f"{error}"
    if lone is not None:
        shown = f'"{lone[1].decode()}" (byte {lone.start(1)})'
        reason = f"{shown} is half a surrogate pair; send both halves, or the character in UTF-8"
    return bad_request(f"the body is not valid JSON: {reason}", code="malformed_json")


def _description(hint: Any) -> str:
    texts = [part.description for part in typing.get_args(hint) if isinstance(part, Meta)]
    assert texts
    assert texts[0], f"{hint} has no description"
    return texts[0]
