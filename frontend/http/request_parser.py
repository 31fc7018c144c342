"""Parses the bytes of a connection into requests: llhttp with our own checks, and limits on everything but bodies."""

from typing import Protocol

import httptools

from frontend.http.framing import Headers, RequestHead, check_head
from messages.errors import ErrorInfo, RequestError, bad_request

MAX_HEAD_BYTES = 65536
"""Limit of a head, and of chunk extensions and trailers beyond the normal framing of chunks."""

PIECE_BYTES = 16384
"""Maximum input per call of the parser, because its own buffering is counted per piece."""

CHUNK_ALLOWANCE_BYTES = 16
"""The size and line ends of a chunk."""


class RequestSink(Protocol):
    """Receives each request as one `on_request`, any number of `on_body`, and one `on_end`."""

    def on_request(self, head: RequestHead) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_end(self) -> None: ...


class _StoppedError(Exception):
    """Ends the parsing after the last request."""


class RequestParser:
    """After `stop` or an error in `feed`, further input is dropped."""

    def __init__(self, sink: RequestSink):
        self._sink = sink
        self._is_stopped = False
        self._llhttp = httptools.HttpRequestParser(self)
        self._num_excess_bytes = 0
        """Bytes of the message outside its body, as far as they count; includes the rest of the current piece."""
        self._num_piece_bytes = 0
        self.is_in_head = False
        self.is_in_body = False
        self._target = b""
        self._headers: Headers = []
        self._head: RequestHead | None = None

    def stop(self) -> None:
        """Lets no further request begin. May be called by the sink."""
        self._is_stopped = True

    def feed(self, data: bytes) -> None:
        """Passes on complete parts. Raises `RequestError` if a request is malformed or its end is ambiguous.

        The requests before that one have been passed on.
        """
        try:
            for at in range(0, len(data), PIECE_BYTES):
                if self._is_stopped:
                    return
                self._feed_piece(data[at : at + PIECE_BYTES])
        except RequestError:
            self.stop()
            raise
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, _StoppedError):
                return
            self.stop()
            if error.__context__ is None:
                raise
            raise error.__context__ from None
        except httptools.HttpParserError as error:
            if self._is_stopped:  # llhttp itself accepts nothing after `Connection: close`
                return
            self.stop()
            raise bad_request(f"this is not an HTTP/1.1 request: {error}") from None

    def _feed_piece(self, piece: bytes) -> None:
        self._num_piece_bytes = len(piece)
        self._num_excess_bytes += len(piece)
        while piece:
            try:
                self._llhttp.feed_data(piece)
            except httptools.HttpParserUpgrade as offer:
                self._ignore_offer()
                piece = piece[offer.args[0] :]
            else:
                break
        if self.is_in_head or self.is_in_body:
            self._check_excess()

    def _check_excess(self) -> None:
        if self._num_excess_bytes <= MAX_HEAD_BYTES:
            return
        if self.is_in_head:
            raise RequestError(ErrorInfo(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes"))
        raise bad_request(f"chunk extensions and trailers are larger than {MAX_HEAD_BYTES} bytes")

    def _ignore_offer(self) -> None:
        """Feeds the head to a new parser without its offer to upgrade (RFC 9110, section 7.8).

        llhttp treats the bytes after an offer as another protocol. The head has already passed llhttp once.
        """
        assert self._head is not None
        lines = [b"%s %s HTTP/%s" % (self._head.method.encode(), self._target, self._head.version.encode())]
        lines += [name + b": " + value for name, value in self._headers if name != b"upgrade"]
        self._llhttp = httptools.HttpRequestParser(self)
        self._llhttp.feed_data(b"\r\n".join([*lines, b"", b""]))

    # Called by llhttp. An exception is returned as the context of its own error.

    def on_message_begin(self) -> None:
        if self._is_stopped:
            raise _StoppedError
        self.is_in_head = True
        self._num_excess_bytes = self._num_piece_bytes
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:  # trailers are dropped: they must not pass for headers
            self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._check_excess()
        parser = self._llhttp
        self._head = check_head(
            parser.get_method().decode("ascii"),
            self._target,
            parser.get_http_version(),
            self._headers,
            keep_alive=parser.should_keep_alive(),
        )
        if parser.should_upgrade():
            return
        self.is_in_head, self.is_in_body = False, True
        self._num_excess_bytes = 0
        self._sink.on_request(self._head)

    def on_body(self, body: bytes) -> None:
        # As in Go's net/http: data pays for the framing around it.
        self._num_excess_bytes = max(0, self._num_excess_bytes - 2 * len(body) - CHUNK_ALLOWANCE_BYTES)
        self._sink.on_body(body)

    def on_message_complete(self) -> None:
        if self._llhttp.should_upgrade():
            return
        self.is_in_body = False
        self._sink.on_end()
