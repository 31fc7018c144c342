"""Keys: which the server knows, for clients and for the operator, and whether a request brings one."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from frontend.errors import forbidden
from frontend.http.endpoint import Access
from messages.config.server import HttpConfig
from messages.errors import BootError, ErrorInfo, RequestError


class UnauthorizedError(RequestError):
    """A 401; the response names the scheme."""

    def __init__(self, message: str):
        super().__init__(ErrorInfo(401, message, "authentication_error", code="invalid_api_key"))


class Keys:
    """Without API keys every client may ask; without any key nobody is the operator.

    Where there are admin keys, an API key does not make an operator. For the rest an admin key is as good as one.
    """

    def __init__(self, api_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()):
        clients, operators = (tuple(key.encode() for key in keys) for keys in (api_keys, admin_keys))
        self._accepted: dict[Access, tuple[bytes, ...]] = {
            "public": (),
            "client": (*clients, *operators) if clients else (),
            "operator": operators or clients,
        }

    def are_needed(self, access: Access) -> bool:
        """Tells whether there are keys of which a request has to bring one."""
        return bool(self._accepted[access])

    def check(self, access: Access, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `UnauthorizedError` where a key is needed and `headers` bring none that is accepted.

        Names of `headers` are in lower case. Every key is compared, each in constant time. Raises `RequestError` (403)
        for the operator's endpoints where there is no key at all.
        """
        accepted = self._accepted[access]
        if access == "operator" and not accepted:
            raise forbidden(
                "admin commands over HTTP need a key: use `python launch.py` (ps, restart, profile, …) on the server's "
                "machine, or start the server with --admin-key",
                code="no_admin_key",
            )
        if not accepted:
            return
        kind = "an admin key" if access == "operator" else "an API key"
        token = _given_key(headers)
        if token is None:
            raise UnauthorizedError(f"{kind} is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
        matches = [hmac.compare_digest(token.strip(), key) for key in accepted]
        if not any(matches):
            raise UnauthorizedError(f"{kind} is needed, and this is none that is valid")


def _given_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the key as OpenAI's clients send it or else as Anthropic's do, `None` where there is none."""
    own: bytes | None = None
    for name, value in headers:
        scheme, _, token = value.partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            return token
        if name == b"x-api-key":
            own = value
    return own


def load_keys(http: HttpConfig) -> Keys:
    """Returns the keys of the flags. Raises `BootError` for one that cannot be used."""
    return Keys(
        read_keys("--api-key", http.api_key),
        read_keys("--admin-key", http.admin_key),
    )


def read_keys(flag: str, given: Iterable[str]) -> tuple[str, ...]:
    """Returns the keys of `flag` and of the files that it names as `@FILE`, each once. Raises `BootError`."""
    keys = [key for text in given for key in (_read_file(flag, text[1:]) if text.startswith("@") else [text])]
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
        raise BootError(f"{flag}: {name} is no text file") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise BootError(f"{flag}: {name} has no key in it")
    return keys
