"""The text of one part of an answer, to which several regions may contribute."""

from frontend.parsing.deltas import Content, Deltas, Reasoning
from frontend.parsing.regions import Region


class TextPart:
    """Passes on text without whitespace next to marks. `has_text`: other text has been passed on."""

    def __init__(self, deltas: Deltas, kind: type[Content] | type[Reasoning]):
        self._deltas = deltas
        self._kind: type[Content] | type[Reasoning] = kind
        self._space: str = ""
        """Trailing whitespace so far, dropped if a mark follows."""
        self._is_behind_mark = False
        self.has_text = False

    def write(self, text: str, region: Region | None) -> None:
        """Adds the text of `region`; with `None`, the text is shown unchanged."""
        is_stripped = region is not None and region.is_stripped
        if self._is_behind_mark:
            text = text.lstrip() if is_stripped else text
            if not text:
                return
            self._is_behind_mark = False
            if self.has_text and region is not None:
                self._deltas.add_text(self._kind, region.join)
        text = self._space + text
        kept = text.rstrip() if is_stripped else text
        self._space = text[len(kept) :]
        self.has_text = self.has_text or bool(kept)
        self._deltas.add_text(self._kind, kept)

    def mark(self) -> None:
        """Records a mark at this position."""
        self._space = ""
        self._is_behind_mark = True

    def end(self) -> None:
        """Ends the text without a mark."""
        self._deltas.add_text(self._kind, self._space)
        self._space = ""
