"""Splits the text of an answer, as it arrives, into reasoning, content and tool calls.

The result depends only on the text, not on how it was cut into pieces. So a stream adds up to the whole reply, and a
request that continues after a process died needs only its text.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from frontend.parsing.call_scanner import CallScanner
from frontend.parsing.deltas import Content, Delta, Deltas, Reasoning
from frontend.parsing.marks import MarkMatch
from frontend.parsing.regions import Format, Region

MAX_BEHIND_CHARS = 64
"""Characters of parsed text that are kept for patterns that look back."""

MAX_READ_CHARS = 256
"""Characters parsed at once: after each mark, the rest is searched again for the next one."""

MAX_REREADS = 8
"""Maximum times that a longer text within reasoning is parsed again, because it began as a call and was none."""

MAX_EMPTY_MARKS = 8
"""Maximum empty marks in a row at one position; more would repeat endlessly."""


class TextPart:
    """Passes on text without whitespace next to marks. `has_text`: other text has been passed on."""

    def __init__(self, deltas: Deltas, kind: type[Content] | type[Reasoning]):
        self._deltas = deltas
        self._kind: type[Content] | type[Reasoning] = kind
        self._space: list[str] = []
        """Trailing whitespace so far, in pieces, dropped if a mark follows."""
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
        kept = text.rstrip() if is_stripped else text
        if kept:
            self.has_text = True
            self._deltas.add_text(self._kind, "".join([*self._space, kept]))
            self._space.clear()
        self._space.append(text[len(kept) :])

    def mark(self) -> None:
        """Records a mark at this position."""
        self._space.clear()
        self._is_behind_mark = True

    def end(self) -> None:
        """Ends the text without a mark."""
        self._deltas.add_text(self._kind, "".join(self._space))
        self._space.clear()


class Crossing(NamedTuple):
    """A mark that opens `region`, or closes it."""

    region: Region
    found: MarkMatch
    is_opening: bool


class _Draft(NamedTuple):
    """A mark of calls within the reasoning of `region`, and the text after it. It is a call once one is complete."""

    region: Region
    mark: str
    pieces: list[str]


class ResponseParser:
    """Reads one answer. `tools`: the schema of each tool's parameters, by tool name.

    `begun`: the beginning of the answer that is in the prompt: an open thought, or the message that is continued.

    A malformed or incomplete call comes out as content, including its marks. If a stream has already shown its
    beginning, its arguments stay as the model wrote them, and a `CallBroken` follows.
    """

    def __init__(
        self,
        format: Format,
        tools: Mapping[str, Any],
        begun: str = "",
        deltas: Deltas | None = None,
    ):
        self._format = format
        self._tools = tools
        self._deltas = Deltas() if deltas is None else deltas
        self._content = TextPart(self._deltas, Content)
        self._reasoning = TextPart(self._deltas, Reasoning)
        self._region = format.rest
        self._is_inside = False
        """Within a region that has an opening mark."""
        self._scanner: CallScanner | None = None
        self._draft: _Draft | None = None
        self._drafted = tuple(each for each in format.regions if each.calls is not None and each.calls.has_mark)
        """Regions of calls that may begin within reasoning."""
        self._num_rereads = 0
        self._unclosed: Region | None = None
        """The reasoning that a call has ended: its closing mark may still follow."""
        self._ahead: list[Iterator[str]] = []
        """Text that has not been parsed, or must be parsed again; the last one comes first."""
        self._text = ""
        self._place = 0
        self._num_empty_marks = 0
        self._is_plain = False
        """The rest of the answer is content, because a pattern took too long."""
        self._read_pieces(begun)
        self._deltas.pop_all()

    def feed(self, text: str) -> list[Delta]:
        """Returns the deltas that are certain after `text`."""
        self._read_pieces(text)
        return self._deltas.pop_all()

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """Returns the text that was held back; call it once, at the end. `is_cut`: the model did not end the answer."""
        self._read(is_complete=True)
        while self._scanner is not None or self._ahead:
            if self._scanner is not None:
                shown = self._scanner.finish(is_cut=is_cut)
                if self._ends_draft():
                    if self._scanner.has_call:
                        self._content.mark()
                    self._show(shown)
                    break
            self._read_pieces("")
            self._read(is_complete=True)
        self._content.end()
        self._reasoning.end()
        return self._deltas.pop_all()

    def _read_pieces(self, text: str) -> None:
        self._ahead.append(_pieces_of(text))
        while self._ahead:
            piece = next(self._ahead[-1], None)
            if piece is None:
                self._ahead.pop()
                continue
            if self._place > 4 * MAX_BEHIND_CHARS:
                self._text = self._text[self._place - MAX_BEHIND_CHARS :]
                self._place = MAX_BEHIND_CHARS
            self._text += piece
            self._read(is_complete=False)

    def _read(self, *, is_complete: bool) -> None:
        while not self._is_plain:
            try:
                crossing, end = self._next_crossing(is_complete=is_complete)
            except TimeoutError:
                self._is_plain = True
                break
            if end > self._place:
                self._num_empty_marks = 0
                if not self._take(end):
                    continue
            if crossing is None:
                return
            self._place = crossing.found.end
            self._cross(crossing)
        if self._scanner is not None:
            shown = self._scanner.finish(is_cut=True)
            if self._ends_draft():
                self._show(shown)
        self._scanner = None
        self._show(self._text[self._place :])
        self._place = len(self._text)

    def _next_crossing(self, *, is_complete: bool) -> tuple[Crossing | None, int]:
        """Returns the next mark, if it is certain, and the end of the text that certainly contains no mark."""
        if self._scanner is not None and self._scanner.is_in_string:
            return None, len(self._text)
        best: Crossing | None = None
        held_from = len(self._text)
        for region, is_opening in self._watched():
            mark = region.opening if is_opening else region.closing
            if mark is None:
                continue
            only_here = is_opening and region.starts_content
            found = mark.find(self._text, self._place, is_complete=is_complete, only_here=only_here)
            if found is None:
                continue
            if not found.is_certain:
                held_from = min(held_from, found.start)
            elif found.start < found.end or is_opening or self._is_inside:
                crossing = Crossing(region, found, is_opening)
                best = crossing if best is None else min(best, crossing, key=self._order)
        if best is None or best.found.start >= held_from:
            return None, held_from
        return best, best.found.start

    def _watched(self) -> list[tuple[Region, bool]]:
        """Returns the regions that may begin (True) or end (False) here."""
        region = self._region
        if self._is_inside and region is not None:
            if self._draft is not None:
                begun = self._drafted if self._scanner is None or not self._scanner.knows_strings else ()
                return [(region, False), (self._draft.region, False), *((each, True) for each in begun)]
            has_drafts = region.kind == "reasoning" and self._num_rereads < MAX_REREADS
            return [(region, False), *((each, True) for each in self._drafted if has_drafts)]
        watched = [
            (each, True) for each in self._format.regions if not (each.starts_content and self._content.has_text)
        ]
        return [*watched, *((each, False) for each in (region, self._unclosed) if each is not None)]

    def _order(self, crossing: Crossing) -> tuple[int, bool, int, bool]:
        """Sort key: by start, then the longest, then opening marks first; within reasoning, its closing mark first."""
        _, found, is_opening = crossing
        return found.start, is_opening and self._is_inside, found.start - found.end, not is_opening

    def _take(self, end: int) -> bool:
        """Passes the text up to `end` to the region. False if marks must be searched again from the current place."""
        text = self._text[self._place : end]
        self._place = end
        if self._scanner is None:
            if self._region is not None:
                self._part_of(self._region).write(text, self._region)
            return True
        rest = self._scanner.feed(text)
        unread = rest if isinstance(rest, str) else rest.unread
        if self._draft is not None:
            self._draft.pieces.append(text[: len(text) - len(unread)])
            self._place = end - len(unread)
            if (self._scanner.has_call or not isinstance(rest, str)) and not self._ends_draft():
                return False
        if self._scanner.has_call:
            self._content.mark()
        if isinstance(rest, str):
            self._place = end - len(rest)
            return not rest and not self._scanner.is_in_string
        shown, unread = rest
        if not shown and not self._scanner.has_call:
            shown, unread = unread[:1], unread[1:]
        self._leave()
        self._show(shown)
        self._place = end - len(unread)
        return False

    def _cross(self, crossing: Crossing) -> None:
        region, found, is_opening = crossing
        if found.start == found.end:
            self._num_empty_marks += 1
            self._is_plain = self._num_empty_marks > MAX_EMPTY_MARKS
        mark_text = self._text[found.start : found.end]
        if self._draft is not None and (is_opening or region is self._draft.region):
            self._place = found.start
            self._drop_draft(self._draft)
            return
        if is_opening:
            if self._is_inside and self._region is not None:
                self._draft = _Draft(self._region, mark_text, [])
                self._deltas.is_draft = True
            self._region, self._is_inside = region, True
            if region.calls is not None:
                self._scanner = region.calls.open(self._deltas, mark_text, found.groups, self._tools)
            else:
                self._content.mark()
                self._reasoning.mark()
            return
        if self._scanner is not None:
            if self._draft is not None:
                self._draft.pieces.append(mark_text)
            shown = self._scanner.finish(is_cut=False)
            if not self._ends_draft():
                return
            if self._scanner.has_call:
                self._content.mark()
            self._show(shown + mark_text if shown else "")
        else:
            self._part_of(region).mark()
            if region is self._unclosed:
                self._content.mark()
                self._unclosed = None
        self._leave()

    def _ends_draft(self) -> bool:
        """Ends the reasoning if it contains a complete call. False if its text is parsed again as reasoning."""
        draft = self._draft
        if draft is None:
            return True
        if self._scanner is None or not self._scanner.has_call:
            self._drop_draft(draft)
            return False
        self._draft, self._unclosed = None, draft.region
        self._reasoning.mark()
        self._content.mark()
        return True

    def _drop_draft(self, draft: _Draft) -> None:
        """Returns to the position after a mark that began no complete call."""
        self._deltas.is_draft = False
        self._draft = self._scanner = None
        self._region, self._is_inside = draft.region, True
        self._reasoning.write(draft.mark, draft.region)
        text = "".join(draft.pieces)
        self._num_rereads += len(text) > MAX_READ_CHARS
        self._ahead.append(_pieces_of(text + self._text[self._place :]))
        self._text = draft.mark
        self._place = len(draft.mark)

    def _leave(self) -> None:
        self._region, self._is_inside = self._format.rest, False
        self._scanner = None

    def _part_of(self, region: Region) -> TextPart:
        return self._reasoning if region.kind == "reasoning" else self._content

    def _show(self, text: str) -> None:
        """Shows text that is not part of a call."""
        if text:
            self._content.write(text, self._format.rest)


def _pieces_of(text: str) -> Iterator[str]:
    return (text[start : start + MAX_READ_CHARS] for start in range(0, len(text), MAX_READ_CHARS))
