"""Stop strings in a text that comes in pieces.

The match that ends first wins, and of those that end together the longest: both hold whatever the pieces are. (vLLM
takes the first of the list that is in the last piece, so there the result depends on how the text was cut.)
"""


class StopString:
    """One stop string, and how much of it the text so far ends with (Knuth, Morris, Pratt 1977)."""

    __slots__ = ("_borders", "num_matched", "string")

    def __init__(self, string: str):
        assert string
        self.string = string
        self.num_matched = 0
        self._borders = [0, 0]
        """[n]: the longest beginning of the string that also ends its first n characters; known as far as matched."""

    def advance(self, char: str) -> bool:
        """Takes the next character of the text; tells whether the text now ends with the whole string.

        After that `restart` must come before the next character.
        """
        num_matched = self._extend(self.num_matched, char)
        self.num_matched = num_matched
        if num_matched == len(self._borders):
            self._borders.append(self._extend(self._borders[num_matched - 1], self.string[num_matched - 1]))
        return num_matched == len(self.string)

    def restart(self) -> None:
        """Goes on after the whole string, as if it were not there but its end might begin another one."""
        self.num_matched = self._borders[len(self.string)]

    def _extend(self, num_matched: int, char: str) -> int:
        while num_matched and self.string[num_matched] != char:
            num_matched = self._borders[num_matched]
        return num_matched + 1 if self.string[num_matched] == char else 0


class StopFinder:
    """Passes the text of one stream on, up to the first stop string.

    What could be the beginning of a stop string is held back, and no more than that; nothing where the stop string
    itself is shown (`is_shown`). `found` is the stop string once it is there; then nothing may be pushed any more.
    """

    __slots__ = ("_active", "_by_first_char", "_held", "_is_shown", "found")

    def __init__(self, strings: tuple[str, ...], is_shown: bool):
        self.found: str | None = None
        self._by_first_char: dict[str, list[StopString]] = {}
        for string in dict.fromkeys(strings):
            self._by_first_char.setdefault(string[0], []).append(StopString(string))
        self._active: list[StopString] = []
        """Those with whose beginning the text ends; the others have matched nothing."""
        self._is_shown = is_shown
        self._held = ""
        """The longest end of the text that is the beginning of a stop string."""

    def push(self, text: str, may_end: bool = True) -> str:
        """Returns what may be shown now that `text` has come. Without `may_end` no stop string that ends in it counts.

        One that begins in it and ends later does.
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
        """Takes one character and returns the stop strings that the text now ends with."""
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
        """Returns what was held back; no text follows."""
        held, self._held = self._held, ""
        return "" if self._is_shown or self.found is not None else held

    def _end(self, found: str, text: str) -> str:
        self.found = found
        if self._is_shown:
            return text
        text = self._held + text
        return text[: len(text) - len(found)]
