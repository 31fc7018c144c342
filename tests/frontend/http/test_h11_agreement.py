"""h11 as a second opinion: if both parsers accept the same bytes, they must parse the same requests."""

import itertools
import json
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.http.memory_connection import exchange

OURS_IS_STRICTER = (
    "Expected CRLF after version",  # lines that end in a bare LF
    "Missing expected CR after header value",
    "Unexpected whitespace after header value",  # obs-fold
    "Invalid header value char",  # control characters
    "Invalid header field char",
    "Duplicate Content-Length",  # the same twice
    "Invalid character in Content-Length",  # the same twice, in one field
    "Content-Length can't be present with Transfer-Encoding",
    "Transfer-Encoding can't be present with Content-Length",
    "Invalid `Transfer-Encoding` header value",  # in a trailer
    "Invalid character in chunk size",  # white space behind it
    "HTTP/1.0 has no Transfer-Encoding",
    "Invalid method encountered",  # one that has no registration
    "CONNECT is not supported",
    "Expected HTTP/2 Connection Preface",
    "Invalid HTTP version",
    "is not supported, only HTTP/1.1 and HTTP/1.0",
    "Host is malformed",
    "the request target is malformed",
    "Unexpected start char in url",
    "Unexpected char in url",
    "Invalid characters in url",
)
"""What we refuse and h11 takes. Each is one reading fewer: h11 reads on, and we close."""


@dataclass
class Reading:
    """The requests that a parser found in a connection's bytes."""

    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    refusal: str = ""


def read_by_h11(data: bytes) -> Reading:
    reading = Reading()
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    server.receive_data(data)
    method, target, body = "", "", b""
    try:
        while True:
            match server.next_event():
                case h11.Request() as request:
                    method, target, body = request.method.decode(), _without_authority(request.target), b""
                case h11.Data() as piece:
                    body += bytes(piece.data)
                case h11.EndOfMessage():
                    reading.requests.append((method, target, body))
                    status = 405 if method == "CONNECT" else 200
                    server.send(h11.Response(status_code=status, headers=[("Content-Length", "0")]))
                    server.send(h11.EndOfMessage())
                    if server.our_state is not h11.DONE or server.their_state is not h11.DONE:
                        return reading
                    server.start_next_cycle()
                case _:
                    return reading
    except h11.RemoteProtocolError as error:
        reading.refusal = str(error) or "refused"
    return reading


def _without_authority(target: bytes) -> str:
    text = target.decode("latin-1")
    if not text.lower().startswith(("http://", "https://")):
        return text.rstrip("?")
    parts = urlsplit(text)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def read_by_us(pieces: list[bytes]) -> Reading:
    reading = Reading()
    rest = exchange(*pieces)
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        if status == 100:
            continue
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        body, rest = rest[: int(length[1])], rest[int(length[1]) :]
        if status == 200:
            assert not reading.refusal
            echoed_method, target, echoed = json.loads(body or b'["HEAD", "/", ""]')
            reading.requests.append((echoed_method, target, echoed.encode("latin-1")))
        else:
            assert not rest, "a refusal is the last that is written"
            reading.refusal = json.loads(body)["error"]["message"]
    return reading


def check(data: bytes, cuts: list[int]) -> None:
    """Both must have read the same, or at least one must have refused what the other read."""
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    ours = read_by_us([data[start:end] for start, end in itertools.pairwise(bounds)])
    theirs = read_by_h11(data)
    num_common = min(len(ours.requests), len(theirs.requests))
    assert ours.requests[:num_common] == theirs.requests[:num_common], (ours, theirs)
    if len(ours.requests) > num_common:
        assert theirs.refusal, (ours, theirs)
    if len(theirs.requests) > num_common:
        assert ours.refusal, (ours, theirs)
        assert any(reason in ours.refusal for reason in OURS_IS_STRICTER), (ours, theirs)


METHODS = [b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"BREW", b"get", b"PRI"]
TARGETS = [b"/", b"/a?b=c", b"/%00", b"http://h:1/p?q", b"http://h", b"*", b"h:80", b"/a#b", b"//x/y", b"/\xe9", b"?q"]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"http/1.1", b"HTTP/1.2"]
HOSTS = [b"Host: x", b"Host: x", b"Host:", b"hOST:\tx ", b"Host: a b", b"X: y", b"Host : x", b"Host: x\r\nHost: x"]
OFFERS = [
    b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEA\r\nUpgrade: h2c",
    b"Upgrade: websocket\r\nconnection: keep-alive, Upgrade",
    b"Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b",
    b"Connection: close, Upgrade\r\nUpgrade: h2c",
    b"Upgrade: h2c",
]
ODD_FIELDS = [
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Close ,x",
    b"Expect: 100-continue",
    b"A: b\r\n c",
    b" A: b",
    b"A: b\rc",
    b"A: \x00",
    b"A:\x0b1",
    b"A\x00: b",
    b"A",
    b": b",
    b"",
    b"Transfer-Encoding: chunked",
    b"Content-Length: 4",
    b"Trailer: Content-Length",
]
LENGTHS = [
    b"Content-Length: %d",
    b"content-length:\t%d ",
    b"Content-Length: +%d",
    b"Content-Length: %d, %d",
    b"Content-Length: %d\r\nContent-Length: %d",
    b"Content-Length: 0%d",
    b"Content-Length: 0x%d",
    b"Content-Length : %d",
    b"Content-Length: %d\r\nContent-Length: 0",
    b"Content-Length: %d\r\nTransfer-Encoding: chunked",
    b"Content-Length: -%d",
    b"Content-Length: %d_0",
    b"Content_Length: %d",
    b"Content-Length: %d00000000000000000000",
]
CODINGS = [
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:\tCHUNKED ",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, gzip",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding:\r\n chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: ",
    b"Transfer-Encoding: ,chunked,",
    b'Transfer-Encoding: "chunked"',
    b"Transfer_Encoding: chunked",
    b"X: y\nTransfer-Encoding: chunked",
]
SIZE_FORMS = [b"%x", b"%X", b"0%x", b"%x;a=b", b"%x ;a", b"%x ", b" %x", b"0x%x", b"+%x", b"%x\t", b'%x;a="\r\n"']
ENDS = [b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b""]
TRAILERS = [b"", b"", b"X: y\r\n", b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n", b"bad\r\n"]

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
bodies = st.one_of(st.just(b""), st.binary(max_size=40), st.just(SMUGGLED), st.just(b"0\r\n\r\n" + SMUGGLED))


def mostly(usual: bytes, others: list[bytes]) -> st.SearchStrategy[bytes]:
    """Most draws are valid, so that the bytes after an oddity are reached."""
    return st.integers(0, 4).flatmap(lambda n: st.just(usual) if n else st.sampled_from(others))


@st.composite
def chunked_bodies(draw: st.DrawFn) -> bytes:
    out = b""
    for piece in draw(st.lists(bodies.filter(len), max_size=3)):
        size = draw(mostly(b"%x", SIZE_FORMS)) % len(piece)
        out += size + draw(mostly(b"\r\n", ENDS)) + piece + draw(mostly(b"\r\n", ENDS))
    return out + draw(mostly(b"0", [b"00", b"0;x", b"-0", b""])) + b"\r\n" + draw(mostly(b"", TRAILERS)) + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    end = draw(mostly(b"\r\n", ENDS))
    method, target = draw(mostly(b"POST", METHODS)), draw(mostly(b"/a", TARGETS))
    lines = [b" ".join([method, target, draw(mostly(b"HTTP/1.1", VERSIONS))]), draw(mostly(b"Host: x", HOSTS))]
    lines += draw(st.lists(st.one_of(st.sampled_from(OFFERS), st.sampled_from(ODD_FIELDS)), max_size=1))
    body = b""
    match draw(st.sampled_from(["none", "length", "chunked"])):
        case "length":
            body = draw(bodies)
            form = draw(mostly(LENGTHS[0], LENGTHS))
            lines.append(form % ((len(body),) * form.count(b"%d")))
        case "chunked":
            body = draw(chunked_bodies())
            lines.append(draw(mostly(CODINGS[0], CODINGS)))
        case _:
            pass
    lines[1:] = draw(st.permutations(lines[1:]))
    return draw(mostly(b"", [b"", b"", b"\r\n", b"\n", b" "])) + end.join([*lines, b"", b""]) + body


streams = st.lists(requests(), min_size=1, max_size=3).map(b"".join)
cuts = st.lists(st.integers(0, 2000), max_size=4)


@settings(max_examples=120, deadline=None)
@given(streams, cuts)
def test_what_both_accept_they_read_alike(data: bytes, cuts: list[int]):
    check(data, cuts)


@settings(max_examples=80, deadline=None)
@given(streams, st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=2), st.integers(0, 2)), max_size=3), cuts)
def test_also_where_bytes_were_changed(data: bytes, edits: list[tuple[int, bytes, int]], cuts: list[int]):
    for at, new, num_dropped in edits:
        at %= len(data) + 1
        data = data[:at] + new + data[at + num_dropped :]
    check(data, cuts)
