"""Text in which calls of tools are expected, read as it comes; what turns out to be no call is given back as text."""

from collections.abc import Generator
from typing import NamedTuple

from frontend.parsing.deltas import Deltas

Steps = Generator[None, None, None]
"""Is resumed when there is more text."""

SPACE = " \t\r\n"


class NotACallError(Exception):
    """The text at the scanner's place cannot be of a call."""


class TextEndError(Exception):
    """There is no more text."""


class Refused(NamedTuple):
    """`shown` turned out to be no call; `unread` follows it and has not been looked at."""

    shown: str
    unread: str


class CallScanner:
    """Reads one region, which `opening` began. Text that does not belong to a call that was begun is kept, to be shown.

    A call is begun when its name and the first of its arguments are known; from then on its text is shown nowhere else.
    """

    separators = SPACE + ",;"

    def __init__(self, deltas: Deltas, opening: str):
        self._deltas = deltas
        self._text = opening
        self._place = len(opening)
        self._shown_from = 0
        """Where the text begins that is no part of a call so far."""
        self._is_complete = False
        self.has_call = False
        self._is_in_call = False
        self._steps = self._read()

    def feed(self, text: str) -> Refused | None:
        """Reads `text`. Returns what is to be shown as soon as it cannot be a call; then nothing may follow."""
        self._text = self._text[self._shown_from :] + text
        self._place -= self._shown_from
        self._shown_from = 0
        try:
            next(self._steps)
        except NotACallError:
            return Refused(self._text[: self._place][self._shown_from :], self._text[self._place :])
        return None

    def finish(self) -> str:
        """Returns what is to be shown of the text, which ends here: all that is no part of a call."""
        self._is_complete = True
        try:
            next(self._steps)
        except TextEndError:
            rest = self._text[self._shown_from :]
            is_rest_of_call = self._is_in_call or (self.has_call and not rest.strip(self.separators))
            return "" if is_rest_of_call else rest
        except NotACallError:
            pass
        return self._text[self._shown_from :]

    def _read(self) -> Steps:
        """Reads calls until it raises `NotACallError` or `TextEndError`."""
        raise NotImplementedError

    def _begin_call(self, name: str) -> None:
        self._deltas.begin_call(name)
        self.has_call = self._is_in_call = True
        self._shown_from = self._place

    def _end_call(self) -> None:
        self._is_in_call = False
        self._shown_from = self._place

    def _add_arguments(self, text: str) -> None:
        self._deltas.add_arguments(text)
        self._shown_from = self._place

    def _wait(self) -> Steps:
        """Returns when there is text at the place."""
        while self._place >= len(self._text):
            if self._is_complete:
                raise TextEndError
            yield

    def _skip(self, characters: str) -> Generator[None, None, str]:
        """Moves past `characters` and returns the one that stands there then."""
        while True:
            yield from self._wait()
            if self._text[self._place] not in characters:
                return self._text[self._place]
            self._place += 1

    def _expect(self, character: str, before: str = SPACE) -> Steps:
        """Moves past `character`. Raises `NotACallError` where another one stands there."""
        if (yield from self._skip(before)) != character:
            raise NotACallError
        self._place += 1
