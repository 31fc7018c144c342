"""Checks of a request's head: where the message ends and which host it addresses."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from messages.errors import ErrorInfo, RequestError, bad_request, quoted

Headers = list[tuple[bytes, bytes]]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_AUTHORITY = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_TARGET = re.compile(rb"(?:https?://([^/?#]+))?(/[^?#]*)?(?:\?([^#]*))?", re.IGNORECASE)
"""origin-form, absolute-form (RFC 9112, section 3.2)"""


@dataclass(slots=True)
class RequestHead:
    """A validated head. The names in `headers` are in lower case."""

    method: str
    raw_path: bytes
    query: bytes
    version: str
    """"1.0" or "1.1"."""
    headers: Headers
    keep_alive: bool
    """The connection may stay open after the response."""
    expects_continue: bool
    """The client waits for an interim response before it sends the body."""

    @property
    def path(self) -> str:
        path = self.raw_path.decode("ascii")
        return unquote(path) if "%" in path else path


def check_head(method: str, target: bytes, version: str, headers: Headers, *, keep_alive: bool) -> RequestHead:
    """Returns the head. Raises `RequestError`: 400, 501 or 505; the connection can then not be used further."""
    if version not in ("1.0", "1.1"):
        raise RequestError(ErrorInfo(505, f"HTTP/{version} is not supported, only HTTP/1.1 and HTTP/1.0"))
    if method == "CONNECT":
        raise RequestError(ErrorInfo(501, "CONNECT is not supported: this server is not a proxy"))
    _check_length(version, headers)
    authority, raw_path, query = _split_target(method, target)
    _check_host(version, headers)
    if authority:  # takes precedence over Host (RFC 9112, section 3.2.2)
        headers = [(name, authority if name == b"host" else value) for name, value in headers]
    return RequestHead(
        method=method,
        raw_path=raw_path,
        query=query,
        version=version,
        headers=headers,
        keep_alive=keep_alive and version == "1.1",
        expects_continue=version == "1.1" and any(v.lower() == b"100-continue" for v in _values(headers, b"expect")),
    )


def _check_length(version: str, headers: Headers) -> None:
    """Raises `RequestError` unless the end of the body is unambiguous (RFC 9112, section 6.3)."""
    lengths = _values(headers, b"content-length")
    if len(lengths) > 1:
        raise bad_request("Content-Length is given more than once")
    if lengths and not lengths[0].isdigit():
        raise bad_request("Content-Length is not a decimal number")
    codings = _values(headers, b"transfer-encoding")
    if not codings:
        return
    if lengths:
        raise bad_request("Transfer-Encoding and Content-Length exclude each other")
    if version == "1.0":
        raise bad_request("HTTP/1.0 has no Transfer-Encoding")
    _check_codings([coding.strip(b" \t").lower() for coding in b",".join(codings).split(b",")])


def _check_codings(codings: list[bytes]) -> None:
    if codings == [b"chunked"]:
        return
    if not all(_TOKEN.fullmatch(coding) for coding in codings):
        raise bad_request("Transfer-Encoding is malformed")
    if b"chunked" in codings[:-1]:
        raise bad_request("in Transfer-Encoding, chunked must come once, and last")
    unknown = next(coding for coding in codings if coding != b"chunked")
    raise RequestError(ErrorInfo(501, f"Transfer-Encoding {quoted(unknown.decode())} is not supported, only chunked"))


def _check_host(version: str, headers: Headers) -> None:
    hosts = _values(headers, b"host")
    if len(hosts) > 1:
        raise bad_request("Host is given more than once")
    if not hosts and version == "1.1":
        raise bad_request("an HTTP/1.1 request needs a Host")
    if hosts and not _AUTHORITY.fullmatch(hosts[0]):
        raise bad_request("Host is malformed")


def _split_target(method: str, target: bytes) -> tuple[bytes, bytes, bytes]:
    """Returns authority (empty unless the target has one), path and query."""
    if target == b"*" and method == "OPTIONS":
        return b"", target, b""
    match = _TARGET.fullmatch(target)
    if match is None or not target.isascii():
        raise bad_request("the request target is malformed")
    authority, path, query = match.groups(b"")
    if not (authority or path) or not _AUTHORITY.fullmatch(authority):
        raise bad_request("the request target is malformed")
    return authority, path or b"/", query


def _values(headers: Headers, requested: bytes) -> list[bytes]:
    return [value.strip(b" \t") for name, value in headers if name == requested]
