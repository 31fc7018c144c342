"""API keys: which the server knows, and whether a request brings one."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from messages.config import HttpConfig
from messages.errors import BootError, ErrorInfo, RequestError

PUBLIC_PATHS = frozenset({"/health", "/ping", "/version"})
"""Open to machines that have no key."""


class UnauthorizedError(RequestError):
    """A 401; the response names the scheme."""

    def __init__(self, message: str):
        super().__init__(ErrorInfo(401, message, "authentication_error", code="invalid_api_key"))


class ApiKeys:
    """Without keys everything is open."""

    def __init__(self, keys: Iterable[str]):
        self._keys = tuple(key.encode() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `UnauthorizedError` where `path` needs a key and `headers` bring none that is known.

        Names of `headers` are in lower case. Every key is compared, each in constant time.
        """
        if not self._keys or path in PUBLIC_PATHS:
            return
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer":
            raise UnauthorizedError("an API key is needed: send it as `Authorization: Bearer KEY`")
        matches = [hmac.compare_digest(token.strip(), key) for key in self._keys]
        if not any(matches):
            raise UnauthorizedError("the API key is not valid")


def load_keys(http: HttpConfig) -> tuple[str, ...]:
    """Returns the keys of `--api-key` and `--api-key-file`. Raises `BootError` for one that cannot be used."""
    keys = list(http.api_key)
    if http.api_key_file:
        keys += _read_file(http.api_key_file)
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise BootError("--api-key: a key must be printable ASCII without spaces, and not empty")
    return tuple(dict.fromkeys(keys))


def _read_file(name: str) -> list[str]:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BootError(f"--api-key-file: {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BootError(f"--api-key-file: {name} is no text file") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise BootError(f"--api-key-file: {name} has no key in it")
    return keys
