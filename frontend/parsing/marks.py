"""The marks between the parts of an answer, found in incomplete text."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import regex

MAX_SEARCH_S = 0.2
"""Time limit of one search: patterns come with models, and some would take forever."""

MAX_MARK_CHARS = 1024
"""Maximum length of a mark: the text that may be a mark is searched again with each token."""

LOOKS_AROUND = re.compile(r"\(\?<[=!]|\\[bBGKmM]|(?<!\[)\^|\(\?\w*[mr]")
"""Syntax of patterns whose start cannot be recognised by one character."""

ASCII = "".join(map(chr, range(128)))
OTHERS = "é\u00a0\u2028中٣ⅷ😀"
"""Samples of non-ASCII characters, for those that a pattern does not name."""


class MarkMatch(NamedTuple):
    """A mark in `text[start:end]`. Unless `is_certain`, more text may change or complete it."""

    start: int
    end: int
    is_certain: bool
    groups: dict[str, str]


class Mark:
    """One of `texts`, or what the regular expression `pattern` matches. Raises `regex.error` for a bad pattern."""

    def __init__(self, texts: Sequence[str] = (), pattern: str = ""):
        longest_first = sorted(texts, key=len, reverse=True)
        source = pattern or "|".join(regex.escape(text) for text in longest_first)
        self._pattern: Any = regex.compile(source, regex.DOTALL)
        self._first = re.compile(_first_characters(self._pattern, source))
        self._may_grow = not texts or any(one != other and one.startswith(other) for one in texts for other in texts)
        self.group_names = frozenset(self._pattern.groupindex)

    def find(self, text: str, start: int, *, is_complete: bool, only_here: bool = False) -> MarkMatch | None:
        """Returns the first mark from `start` on (with `only_here`: at `start`), which may be incomplete.

        Raises `TimeoutError` if the pattern takes too long.
        """
        first = self._first.search(text, start)
        if first is None or (only_here and first.start() > start):
            return None
        search = self._pattern.match if only_here else self._pattern.search
        match = search(text, first.start(), partial=not is_complete, timeout=MAX_SEARCH_S)
        while match is not None and match.end() - match.start() > MAX_MARK_CHARS:
            later = max(match.start() + 1, match.end() - MAX_MARK_CHARS)
            match = None if only_here else search(text, later, partial=not is_complete, timeout=MAX_SEARCH_S)
        if match is None:
            return None
        is_at_edge = match.end() == len(text) and (self._may_grow or match.end() == match.start())
        is_certain = is_complete or not (match.partial or is_at_edge)
        groups = {name: value for name, value in match.groupdict().items() if value is not None} if is_certain else {}
        return MarkMatch(match.start(), match.end(), is_certain, groups)


def _first_characters(pattern: Any, source: str) -> str:
    """Returns a pattern for the first character of a mark, or for the one before it; most text has none."""
    if LOOKS_AROUND.search(source) or any(pattern.match(character, partial=True) for character in OTHERS):
        return ""
    named = {character for character in source if not character.isascii()}
    possible = [character for character in [*ASCII, *named] if pattern.match(character, partial=True)]
    return "[" + "".join(map(re.escape, possible)) + "]" if possible else "(?!)"
