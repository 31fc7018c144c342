"""Parses text that should contain tool calls as it arrives; text that turns out not to be a call is returned."""

from collections.abc import Collection, Generator
from typing import NamedTuple

from frontend.parsing.deltas import Deltas

Steps = Generator[None, None, None]
"""Resumed when there is more text."""

SPACE = " \t\r\n"


class NotACallError(Exception):
    """The text at the current position cannot be part of a call."""


class TextEndError(Exception):
    """There is no more text."""


class Rejection(NamedTuple):
    """`shown` turned out not to be a call; `unread` follows it and has not been parsed."""

    shown: str
    unread: str


class CallScanner:
    """Parses one region, which `opening` began. Text outside calls is kept so that it can be shown.

    A call begins when its name and the start of its arguments are known; it is complete when its arguments end. A
    stream shows it from its beginning, otherwise it is shown when complete; its text is then not shown as content.
    """

    separators = SPACE + ",;"
    knows_strings = True
    """Marks within strings are recognized, and have no meaning."""

    def __init__(self, deltas: Deltas, opening: str, known_names: Collection[str] | None = None):
        self._deltas = deltas
        self._known_names = known_names
        """If given, a call with another name is not a call: no mark distinguishes calls from other text."""
        self._kept = [opening]
        """Earlier text that is not part of a call so far, in pieces: a text of its own for each token would be copied
        each time."""
        self._text = ""
        self._place = 0
        self._kept_from = 0
        """Start of the rest of that text, in `_text`."""
        self._is_complete = False
        self.has_call = False
        self.is_in_string = False
        """Marks have no meaning within a string."""
        self._began_in_string = False
        self._is_open = False
        """The current position is within the arguments of a call."""
        self._is_in_call = False
        self._steps = self._read()

    def feed(self, text: str) -> Rejection | str:
        """Reads `text`. Returns `Rejection` as soon as it cannot be a call; do not call it again then.

        Otherwise returns the unread rest: if `text` begins within a string, the text after that string.
        """
        self._kept.append(self._text[self._kept_from :])
        self._text = text
        self._place = self._kept_from = 0
        self._began_in_string = self.is_in_string
        try:
            next(self._steps)
        except NotACallError:
            unread = self._text[self._place :]
            self._text = self._text[: self._place]
            shown = self._kept_text()
            return Rejection("" if self.has_call and not shown.strip(self.separators) else shown, unread)
        unread = self._text[self._place :]
        self._text = self._text[: self._place]
        return unread

    def finish(self, *, is_cut: bool) -> str:
        """Returns the text to show at the end of the region: all that is not part of a call.

        `is_cut`: neither a mark nor the model ended it.
        """
        self._is_complete = True
        try:
            next(self._steps)
        except TextEndError:
            rest = self._kept_text()
            if self._is_open:
                return "" if self._break_call(is_cut=is_cut) else rest
            is_rest_of_call = self._is_in_call or (self.has_call and not rest.strip(self.separators))
            return "" if is_rest_of_call else rest
        except NotACallError:
            pass
        return self._kept_text()

    def _show_cut(self, name: str, arguments: str) -> bool:
        """Shows a call within whose arguments the answer was cut, unless it is a draft. True if it is shown."""
        if self._deltas.is_draft:
            return False
        self._deltas.begin_call(name)
        self._deltas.add_arguments(arguments)
        return self._break_call(is_cut=True)

    def _break_call(self, *, is_cut: bool) -> bool:
        is_shown = self._deltas.break_call(is_cut=is_cut)
        self.has_call = self.has_call or is_shown
        return is_shown

    def _kept_text(self) -> str:
        return "".join(self._kept) + self._text[self._kept_from :]

    def _drop_kept(self) -> None:
        """The text up to here is part of a call, and not shown."""
        self._kept.clear()
        self._kept_from = self._place

    def _read(self) -> Steps:
        """Reads calls until it raises `NotACallError` or `TextEndError`."""
        raise NotImplementedError

    def _begin_call(self, name: str) -> None:
        self._deltas.begin_call(name)
        self._is_open = True
        self._record_shown()

    def _add_arguments(self, text: str) -> None:
        self._deltas.add_arguments(text)
        self._record_shown()

    def _record_shown(self) -> None:
        if self._deltas.is_streamed:
            self.has_call = self._is_in_call = True
            self._drop_kept()

    def _end_call(self) -> None:
        """Ends the arguments. Raises `NotACallError` if they are malformed and have not been shown."""
        self._is_open = False
        if self._deltas.end_call():
            self.has_call = self._is_in_call = True
            self._drop_kept()
        elif not self._deltas.is_streamed:
            raise NotACallError

    def _add_call(self, name: str, arguments: str) -> None:
        """Adds a whole call. Raises `NotACallError` if its arguments are malformed and have not been shown."""
        self._begin_call(name)
        self._add_arguments(arguments)
        self._end_call()

    def _is_known(self, name: str | None) -> bool:
        return self._known_names is None or name is None or name in self._known_names

    def _leave_call(self) -> None:
        """Ends the text of the call, after its arguments."""
        self._is_in_call = False
        self._drop_kept()

    def _leave_string(self) -> Steps:
        self.is_in_string = False
        if self._began_in_string:
            self._began_in_string = False
            yield

    def _wait(self) -> Steps:
        """Waits until there is text at the current position."""
        while self._place >= len(self._text):
            if self._is_complete:
                raise TextEndError
            yield

    def _skip(self, characters: str) -> Generator[None, None, str]:
        """Moves past `characters` and returns the character that follows."""
        while True:
            yield from self._wait()
            if self._text[self._place] not in characters:
                return self._text[self._place]
            self._place += 1

    def _expect(self, character: str, before: str = SPACE) -> Steps:
        """Moves past `character`. Raises `NotACallError` if another character is found."""
        if (yield from self._skip(before)) != character:
            raise NotACallError
        self._place += 1
