"""Fetches an image from an http(s) URL: bounded, without credentials, only from addresses that have been checked."""

import contextlib
import functools
import http.client
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import urljoin

from frontend.images.addresses import Address, Target, UrlRules, is_http
from frontend.images.parts import BAD_URL, bad_image, too_large
from messages.errors import RequestError

MAX_REDIRECTS = 3
SILENCE_TIMEOUT_S = 5.0
"""For each connection attempt, and for each pause of the server."""

READ_BYTES = 1 << 16
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Fetch:
    """`run` blocks a thread; `cancel` ends it soon, from any thread."""

    def __init__(self, url: str, rules: UrlRules, where: str, max_bytes: int):
        self._url = url
        self._rules = rules
        self._where = where
        self._max_bytes = max_bytes
        self._socket: socket.socket | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # an SSLSocket's own method is not thread-safe

    def run(self) -> bytes:
        """Returns the bytes of the image. Raises `RequestError` (400)."""
        url = self._url
        for _ in range(MAX_REDIRECTS + 1):
            try:
                found = self._get(url)
            except (OSError, http.client.HTTPException) as error:
                raise self._error(_reason(error)) from None
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
            if not is_http(url):
                raise self._error("it was redirected to a URL that is not http(s)")
        raise self._error(f"it was redirected more than {MAX_REDIRECTS} times")

    def _error(self, reason: str) -> RequestError:
        return bad_image(self._where, f"the image could not be fetched: {reason}", BAD_URL)

    def _get(self, url: str) -> bytes | str:
        """Returns the content, or the URL of a redirect."""
        target = self._rules.check(url, self._where)
        addresses = self._rules.resolve(target, self._where)
        connection = http.client.HTTPConnection(target.host)
        try:
            connection.sock = self._connect(target, addresses)
            connection.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
            for name, value in (("Host", target.authority), ("Accept", "image/*"), ("User-Agent", "Sluice")):
                connection.putheader(name, value)
            connection.putheader("Connection", "close")
            connection.endheaders()
            with connection.getresponse() as response:
                return self._read(response)
        finally:
            connection.close()

    def _connect(self, target: Target, addresses: Sequence[Address]) -> socket.socket:
        """Connects to the first address that accepts. Raises `OSError`."""
        for index, (family, address) in enumerate(addresses):
            plain = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._keep(plain)
                plain.settimeout(SILENCE_TIMEOUT_S)
                plain.connect(address)
                return plain if target.scheme == "http" else self._secure(plain, target.host)
            except OSError as error:
                if self._socket is not None:
                    self._socket.close()  # with TLS, it has taken over the plain one
                if isinstance(error, ssl.SSLError) or self._is_cancelled or index + 1 == len(addresses):
                    raise
        raise OSError("its host has no address")

    def _secure(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        secured = tls_context().wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        self._keep(secured)
        secured.do_handshake()
        return secured

    def _keep(self, opened: socket.socket) -> None:
        """Lets `cancel` end it. Raises `TimeoutError` if that was called."""
        self._socket = opened
        if self._is_cancelled:
            opened.close()
            raise TimeoutError

    def _read(self, response: http.client.HTTPResponse) -> bytes | str:
        location = response.headers.get("location")
        if response.status in REDIRECTS and location:
            return location
        if response.status != 200:
            raise self._error(f"its server replied with status {response.status}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._error("its server has compressed it")
        content = bytearray()
        while (response.length or 0) + len(content) <= self._max_bytes:
            piece = response.read1(READ_BYTES)
            content += piece
            if not piece and response.length:
                raise self._error("the connection ended early")
            if not piece:
                return bytes(content)
        raise too_large(self._where, len(content) + (response.length or 0), self._max_bytes)


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Checks certificates and names."""
    return ssl.create_default_context()


def _reason(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "its server did not respond in time"
        case ssl.SSLCertVerificationError():
            return f"its server's certificate is not valid: {error.verify_message}"
        case ssl.SSLError():
            return "its server's TLS failed"
        case OSError():
            return (error.strerror or "the connection failed").lower()
        case _:
            return "its server's reply is not valid HTTP"
