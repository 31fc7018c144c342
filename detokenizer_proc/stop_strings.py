"""Finds stop strings in a text that arrives in pieces.

The match that ends first wins; of matches that end together, the longest. So the result does not depend on how the text
is cut. (vLLM uses the first of the list that is in the last piece, so its result does.)
"""


class StopString:
    """One stop string, and how much of it the text currently ends with (Knuth, Morris, Pratt 1977)."""

    __slots__ = ("_borders", "num_matched", "string")

    def __init__(self, string: str):
        assert string
        self.string = string
        self.num_matched = 0
        self._borders = [0, 0]
        """[n]: length of the longest proper prefix that ends the first n characters, known up to the match."""

    def advance(self, char: str) -> bool:
        """Advances by one character of the text. Returns True if the text now ends with the whole string.

        Then call `restart` before the next character.
        """
        num_matched = self._extend(self.num_matched, char)
        self.num_matched = num_matched
        if num_matched == len(self._borders):
            self._borders.append(self._extend(self._borders[num_matched - 1], self.string[num_matched - 1]))
        return num_matched == len(self.string)

    def restart(self) -> None:
        """Continues after the whole string, whose end may be the beginning of another match."""
        self.num_matched = self._borders[len(self.string)]

    def _extend(self, num_matched: int, char: str) -> int:
        while num_matched and self.string[num_matched] != char:
            num_matched = self._borders[num_matched]
        return num_matched + 1 if self.string[num_matched] == char else 0


class StopFinder:
    """Passes on the text of one stream up to the first stop string.

    Holds back only text that could be the beginning of a stop string, and none if the stop string itself is shown
    (`is_shown`). `found` is the stop string once it is complete; then no more text may be pushed.
    """

    __slots__ = ("_active", "_by_first_char", "_held", "_is_shown", "found")

    def __init__(self, strings: tuple[str, ...], is_shown: bool):
        self.found: str | None = None
        self._by_first_char: dict[str, list[StopString]] = {}
        for string in dict.fromkeys(strings):
            self._by_first_char.setdefault(string[0], []).append(StopString(string))
        self._active: list[StopString] = []
        """The stop strings with a partial match at the end of the text."""
        self._is_shown = is_shown
        self._held = ""
        """The longest suffix of the text that is the beginning of a stop string."""

    def push(self, text: str, may_end: bool = True) -> str:
        """Returns the text that can be shown after `text`.

        Without `may_end`, stop strings that end in `text` do not count; those that begin in it and end later do.
        """
        if not self._active and self._by_first_char.keys().isdisjoint(text):
            return text
        for end, char in enumerate(text, 1):
            complete = self._advance(char)
            if complete and may_end:
                return self._end(max(complete, key=lambda stop: len(stop.string)).string, text[:end])
            if complete:
                self._restart(complete)
        num_held = max((stop.num_matched for stop in self._active), default=0)
        text = self._held + text
        shown_before, self._held = len(self._held), text[len(text) - num_held :]
        return text[shown_before:] if self._is_shown else text[: len(text) - num_held]

    def _advance(self, char: str) -> list[StopString]:
        """Advances by one character. Returns the stop strings that the text now ends with."""
        starting = self._by_first_char.get(char)
        if starting is not None:
            self._active += [stop for stop in starting if not stop.num_matched]
        elif not self._active:
            return []
        complete = [stop for stop in self._active if stop.advance(char)]
        self._active = [stop for stop in self._active if stop.num_matched]
        return complete

    def _restart(self, complete: list[StopString]) -> None:
        for stop in complete:
            stop.restart()
        self._active = [stop for stop in self._active if stop.num_matched]

    def finish(self) -> str:
        """Returns the text that was held back; no text follows."""
        held, self._held = self._held, ""
        return "" if self._is_shown or self.found is not None else held

    def _end(self, found: str, text: str) -> str:
        self.found = found
        if self._is_shown:
            return text
        text = self._held + text
        return text[: len(text) - len(found)]
