"""JSON with keys without quotes and strings between marks, as Gemma writes it; slips of models are corrected.

A string may lack its mark at one end or both. One that is not closed ends before the next key, or before the brackets
at the end.
"""

import json
import re
from collections.abc import Sequence

SPACE = re.compile(r"\s*")
KEY = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([\w.-]+))\s*:', re.DOTALL)
SCALAR = re.compile(r"(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=\s*(?:[,}\]]|\Z))")
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
BARE_END = re.compile(r"[}\]]|,(?=\s{0,8}[\w.-]{1,128}\s{0,8}:)|\Z")
ITEM_END = re.compile(r"[,\]]|\Z")
NEXT_KEY = re.compile(r",\s{0,8}[\w.-]{1,128}\s{0,8}:\s{0,8}\Z")
MAX_NEXT_KEY_CHARS = 160
CLOSING = {"{": "}", "[": "]"}


class LooseReader:
    """Translates `text` to JSON. `marks`: the texts before and after a string, in pairs.

    With `is_cut` the text may end anywhere, and so does `json`. Raises `ValueError`.
    """

    def __init__(self, text: str, marks: Sequence[Sequence[str]], *, is_cut: bool = False):
        self._text = text
        self._marks = marks
        self._is_cut = is_cut
        self._place = 0
        self._open: list[str] = []
        self._pieces: list[str] = []
        self._read()
        self.json = "".join(self._pieces)

    def _read(self) -> None:
        has_value = False
        while True:
            character = self._next()
            if not character:
                if (self._open or not has_value) and not self._is_cut:
                    raise ValueError("a value or a bracket is absent")
                return
            bracket = self._open[-1] if self._open else ""
            if bracket and character == CLOSING[bracket] and (has_value or self._pieces[-1] == bracket):
                self._open.pop()
                self._write(character, 1)
                has_value = True
            elif has_value:
                if not bracket or character != ",":
                    raise ValueError("text after a value")
                self._write(",", 1)
                has_value = False
            elif bracket == "{" and self._pieces[-1] != ":":
                self._read_key()
            else:
                has_value = self._read_value(character)

    def _next(self) -> str:
        found = SPACE.match(self._text, self._place)
        self._place = found.end() if found else self._place
        return self._text[self._place : self._place + 1]

    def _write(self, piece: str, num_chars: int) -> None:
        self._pieces.append(piece)
        self._place += num_chars

    def _read_key(self) -> None:
        opening, closing = self._mark_here()
        key = KEY.match(self._text, self._place + len(opening)) if not opening else None
        if key is not None:
            name, end = (key[2] if key[1] is None else json.loads(f'"{key[1]}"', strict=False)), key.end()
        else:
            end = self._text.find(closing, self._place + len(opening)) if opening else -1
            colon = SPACE.match(self._text, end + len(closing)) if end >= 0 else None
            if colon is None or self._text[colon.end() : colon.end() + 1] != ":":
                if self._is_cut:
                    self._place = len(self._text)
                    return
                raise ValueError("a key is absent")
            name, end = self._text[self._place + len(opening) : end], colon.end() + 1
        self._pieces.append(json.dumps(name, ensure_ascii=False))
        self._write(":", end - self._place)

    def _read_value(self, character: str) -> bool:
        """True if the value has ended, False if it has only begun."""
        if character in CLOSING:
            self._open.append(character)
            self._write(character, 1)
            return False
        if self._mark_here()[0]:
            self._read_marked()
        elif found := SCALAR.match(self._text, self._place):
            self._write(found[0], len(found[0]))
        elif found := QUOTED.match(self._text, self._place):
            self._write(json.dumps(json.loads(found[0], strict=False), ensure_ascii=False), len(found[0]))
        else:
            self._read_bare()
        return True

    def _mark_here(self) -> tuple[str, str]:
        for opening, closing in self._marks:
            if self._text.startswith(opening, self._place):
                return opening, closing
        return "", ""

    def _read_marked(self) -> None:
        opening, closing = self._mark_here()
        start = self._place + len(opening)
        end = self._text.find(closing, start)
        if end < 0:
            self._read_unclosed(start, closing)
            return
        behind = SPACE.match(self._text, end + len(closing))
        after = self._text[behind.end() : behind.end() + 1] if behind else ""
        if after and after not in ",}]":  # the mark begins another string
            lookback = max(start, end - MAX_NEXT_KEY_CHARS)
            key = NEXT_KEY.search(self._text[lookback:end])
            if key is not None:
                self._add_text(self._text[start : lookback + key.start()], lookback + key.start())
                return
        self._add_text(self._text[start:end], end + len(closing))

    def _read_unclosed(self, start: int, closing: str) -> None:
        """Reads a string that ends with the text, or before the brackets that close what is open."""
        end = len(self._text)
        if self._is_cut:
            text = self._text[start:]
            cut = next((n for n in range(len(closing) - 1, 0, -1) if text.endswith(closing[:n])), 0)
            self._pieces.append(json.dumps(text[: len(text) - cut], ensure_ascii=False)[:-1])
            self._place = end
            return
        for bracket in self._open:
            place = end
            while place > start and self._text[place - 1].isspace():
                place -= 1
            if place == start or self._text[place - 1] != CLOSING[bracket]:
                break
            end = place - 1
        self._add_text(self._text[start:end], end)

    def _read_bare(self) -> None:
        ends = ITEM_END if self._open and self._open[-1] == "[" else BARE_END
        found = ends.search(self._text, self._place)
        end = found.start() if found else len(self._text)
        text = self._text[self._place : end].strip()
        if not text:
            raise ValueError("a value is absent")
        if self._is_cut and end == len(self._text):
            self._write(json.dumps(text, ensure_ascii=False)[:-1], end - self._place)
            return
        for _, closing in self._marks:
            text = text.removesuffix(closing)
        self._add_text(text, end)

    def _add_text(self, text: str, end: int) -> None:
        self._pieces.append(json.dumps(text, ensure_ascii=False))
        self._place = end
