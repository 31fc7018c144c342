"""The text in the arguments of a custom tool's call: the string `input` of a JSON object, parsed as it arrives."""

import json
import re

import regex

BEGINNING = regex.compile(r'\s*\{\s*"input"\s*:\s*"')
MAX_BEGINNING_CHARS = 256
"""Longer arguments without a string have another form; the beginning is searched again with each token."""

ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\"", re.DOTALL)
"""An escape, or the end of the string."""

CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?\Z")
"""The beginning of an incomplete escape."""


class InputReader:
    """Parses one call. Arguments in any other form are passed on as text."""

    def __init__(self) -> None:
        self._waiting = ""
        self._has_begun = False
        self._is_other = False
        self._has_ended = False

    def feed(self, arguments: str) -> str:
        """Returns the text that is certain after `arguments`."""
        self._waiting += arguments
        if not self._has_begun:
            found = BEGINNING.match(self._waiting, partial=True)
            self._is_other = found is None or (found.partial and len(self._waiting) > MAX_BEGINNING_CHARS)
            self._has_begun = self._is_other or not (found and found.partial)
            if found is not None and not found.partial:
                self._waiting = self._waiting[found.end() :]
        if not self._has_begun or self._has_ended:
            return ""
        end = len(self._waiting) if self._is_other else self._end()
        text, self._waiting = self._waiting[:end], self._waiting[end:]
        return text if self._is_other else ESCAPE.sub(_unescape, text)

    def _end(self) -> int:
        """Returns the end of the text that is certain."""
        place = 0
        while (found := ESCAPE.search(self._waiting, place)) and not CUT_ESCAPE.match(self._waiting, found.start()):
            if found[0] == '"':
                self._has_ended = True
                return found.start()
            place = found.end()
        cut = CUT_ESCAPE.search(self._waiting, place)
        return cut.start() if cut else len(self._waiting)


def _unescape(escape: re.Match[str]) -> str:
    """Returns the character of an escape. Escapes that JSON does not know, which models write, stay unchanged."""
    try:
        return json.loads(f'"{escape[0]}"').encode(errors="replace").decode()
    except ValueError:
        return escape[0]
