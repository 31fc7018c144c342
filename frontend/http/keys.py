"""API keys and admin keys: loading them, and checking the key of a request."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from frontend.errors import forbidden
from frontend.http.endpoint import Access
from frontend.requests.client import Client, NamedKeys
from messages.config.server import Config, HttpConfig
from messages.errors import BootError, ErrorInfo, RequestError
from messages.program import PROGRAM
from runtime.extras import installed_extras, load_object


class UnauthorizedError(RequestError):
    """A 401, whose response names the authentication scheme."""

    def __init__(self, message: str):
        super().__init__(ErrorInfo(401, message, "authentication_error", code="invalid_api_key"))


class Keys:
    """Without API keys every client has access; without any key no client is the operator.

    If admin keys exist, an API key is not enough for the operator's endpoints. Elsewhere an admin key counts as an API
    key. `named`: further keys; those of admins count as admin keys.
    """

    def __init__(self, api_keys: Iterable[str] = (), admin_keys: Iterable[str] = (), named: NamedKeys | None = None):
        self._named = named
        clients, operators = (tuple(key.encode() for key in keys) for keys in (api_keys, admin_keys))
        self._operators = operators
        self._accepted: dict[Access, tuple[bytes, ...]] = {
            "public": (),
            "client": (everyone := (*clients, *operators) if clients or named else ()),
            "overall": everyone,
            "operator": operators or clients,
        }

    @property
    def have_limits(self) -> bool:
        """True if some may have limits."""
        return self._named is not None

    def are_needed(self, access: Access) -> bool:
        """True if a request needs a key."""
        return bool(self._accepted[access]) or (self._named is not None and access != "public")

    def check(self, access: Access, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """Returns the client. Raises `UnauthorizedError` if a key is needed and `headers` have no accepted one.

        The names in `headers` are in lower case. Every key is compared in constant time. Raises `RequestError` (403)
        for the operator's endpoints if the server has no key at all, or if the key has a name and is no admin's.
        """
        if not self.are_needed(access) and access == "operator":
            raise forbidden(
                f"admin commands over HTTP need a key: use `{PROGRAM}` (ps, restart, profile, …) on the server's "
                "machine, or start the server with --admin-key",
                code="no_admin_key",
            )
        if not self.are_needed(access):
            return Client(sees_all=self._named is None)
        kind = "an admin key" if access == "operator" else "an API key"
        token = _sent_key(headers)
        if token is None:
            raise UnauthorizedError(f"{kind} is required: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
        token = token.strip()
        if self._named is not None and (client := self._named.find(token)) is not None:
            if access in ("overall", "operator") and not client.is_admin:
                raise forbidden(f"this is for admins, and the key {client.name} is not one's", "not_an_admin_key")
            return client
        matches = [hmac.compare_digest(token, key) for key in self._accepted[access]]
        if not any(matches):
            raise UnauthorizedError(f"{kind} is required, and this key is not valid")
        operators = [hmac.compare_digest(token, key) for key in self._operators if self._named is not None]
        return Client(sees_all=any(operators) or self._named is None)


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


def load_keys(http: HttpConfig, named: NamedKeys | None) -> Keys:
    """Returns the keys of the flags and their files. Raises `BootError` if a key is invalid."""
    return Keys(read_keys("--api-key", http.api_key), read_keys("--admin-key", http.admin_key), named)


def load_named_keys(config: Config) -> NamedKeys | None:
    """Returns the keys with names; `None` if the server has none. Raises `BootError`."""
    for extra in installed_extras():
        if extra.keys and extra.name in config.extras:
            return load_object(extra.keys)(config)
    return None


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
