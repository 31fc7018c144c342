"""API keys and admin keys: loading them, and checking the key of a request."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from frontend.errors import forbidden
from frontend.http.endpoint import Access
from messages.config.server import HttpConfig
from messages.errors import BootError, ErrorInfo, RequestError
from messages.program import PROGRAM


class UnauthorizedError(RequestError):
    """A 401, whose response names the authentication scheme."""

    def __init__(self, message: str):
        super().__init__(ErrorInfo(401, message, "authentication_error", code="invalid_api_key"))


class Keys:
    """Without API keys every client has access; without any key no client is the operator.

    If admin keys exist, an API key is not enough for the operator's endpoints. Elsewhere an admin key counts as an API
    key.
    """

    def __init__(self, api_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()):
        clients, operators = (tuple(key.encode() for key in keys) for keys in (api_keys, admin_keys))
        self._accepted: dict[Access, tuple[bytes, ...]] = {
            "public": (),
            "client": (*clients, *operators) if clients else (),
            "operator": operators or clients,
        }

    def are_needed(self, access: Access) -> bool:
        """True if a request needs a key."""
        return bool(self._accepted[access])

    def check(self, access: Access, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `UnauthorizedError` if a key is needed and `headers` have no accepted one.

        The names in `headers` are in lower case. Every key is compared in constant time. Raises `RequestError` (403)
        for the operator's endpoints if the server has no key at all.
        """
        accepted = self._accepted[access]
        if access == "operator" and not accepted:
            raise forbidden(
                f"admin commands over HTTP need a key: use `{PROGRAM}` (ps, restart, profile, …) on the server's "
                "machine, or start the server with --admin-key",
                code="no_admin_key",
            )
        if not accepted:
            return
        kind = "an admin key" if access == "operator" else "an API key"
        token = _sent_key(headers)
        if token is None:
            raise UnauthorizedError(f"{kind} is required: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
        matches = [hmac.compare_digest(token.strip(), key) for key in accepted]
        if not any(matches):
            raise UnauthorizedError(f"{kind} is required, and this key is not valid")


def _sent_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the key as OpenAI's clients send it, otherwise as Anthropic's do; `None` if there is none."""
    own: bytes | None = None
    for name, value in headers:
        scheme, _, token = value.partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            return token
        if name == b"x-api-key":
            own = value
    return own


def load_keys(http: HttpConfig) -> Keys:
    """Returns the keys of the flags and their files. Raises `BootError` if a key is invalid."""
    return Keys(read_keys("--api-key", http.api_key), read_keys("--admin-key", http.admin_key))


def read_keys(flag: str, provided: Iterable[str]) -> tuple[str, ...]:
    """Returns the keys of `flag`, and those in the files that it names as `@FILE`, without duplicates.

    Raises `BootError`.
    """
    keys = [key for text in provided for key in (_read_file(flag, text[1:]) if text.startswith("@") else [text])]
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise BootError(f"{flag}: a key must be printable ASCII without spaces, and not empty")
    return tuple(dict.fromkeys(keys))


def _read_file(flag: str, name: str) -> list[str]:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BootError(f"{flag}: {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BootError(f"{flag}: {name} is not a text file") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise BootError(f"{flag}: {name} contains no key")
    return keys
