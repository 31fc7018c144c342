"""Exceptions that a client, an operator or a model file can cause."""

import reprlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
MAX_QUOTED_CHARS = 60
"""The part of a client's or a file's value that an error shows."""


def quoted(value: Any) -> str:
    """Returns the beginning of a value from a client or a file, for an error; the work does not grow with the value."""
    if not isinstance(value, str):
        return cut(reprlib.repr(value))
    return repr(cut(value))


def cut(text: str) -> str:
    """Returns at most the first `MAX_QUOTED_CHARS` characters, with an ellipsis if there are more."""
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"


def cut_value(words: str) -> str:
    """Returns a message of msgspec with at most the beginning of the value or name that it quotes."""
    text, found, place = words.partition(" - at `$")
    for quote in "'`":
        before, _, rest = text.partition(quote)
        value, end, after = rest.rpartition(quote)
        text = f"{before}{quote}{cut(value)}{quote}{after}" if end else text
    return text + found + place


@contextmanager
def errors_as(
    kind: Callable[[str], Exception],
    what: object,
    advice: str = "",
    of: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Generator[None]:
    """Raises `kind` in place of an error of the types `of`: about `what`, with the reason and then `advice`."""
    try:
        yield
    except of as error:
        reason = getattr(error, "strerror", None) if of is OSError else None
        raise kind(f"{what}: {reason or error}{advice}") from None


class SluiceError(Exception):
    """An error whose message is written for the person who can fix it."""


class UsageError(SluiceError):
    """The command line or the configuration is wrong; the launcher exits with code 2."""


class BootError(SluiceError):
    """A process cannot start (missing weights, too little memory, a port in use); the launcher exits with code 1.

    `fitting_len`: if not 0, the length of a context for which there is memory, unlike that of the model's.
    """

    def __init__(self, message: str, fitting_len: int = 0):
        super().__init__(message)
        self.fitting_len = fitting_len


class MissingExtraError(BootError):
    """The libraries of an extra in pyproject.toml, which `flag` needs, are not installed.

    The message suggests an installation from the checkout: on PyPI, the program's name belongs to another project.
    """

    def __init__(self, flag: str, extra: str, error: ImportError):
        install = f"{sys.executable} -m pip install -e '{ROOT}[{extra}]'"
        super().__init__(f"{flag} needs more libraries ({error}); install them with: {install}")


class ChannelFullError(SluiceError):
    """The queue is full because its receiver has stopped reading."""


class ErrorInfo(msgspec.Struct, frozen=True, array_like=True):
    """The body of an HTTP error, on its way to the client.

    `param` names the invalid field of the request, `code` is a short machine-readable word; both may be `None`.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    too_long: tuple[int, int] | None = None
    """For a prompt that is too long: its number of tokens (a lower bound) and the maximum."""


class RequestError(SluiceError):
    """A request is rejected. Carries the HTTP status and the fields of the body."""

    def __init__(self, info: ErrorInfo):
        super().__init__(info.message)
        self.info = info


def bad_request(message: str, param: str | None = None, code: str | None = None) -> RequestError:
    """Returns a 400 error that names `param` as the invalid field."""
    return RequestError(ErrorInfo(status=400, message=message, param=param, code=code))
