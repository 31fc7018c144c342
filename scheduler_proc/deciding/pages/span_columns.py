"""What tokens of spans have of their own in a step: rotary positions, and the last token that they attend to.

An image whose positions have three axes (`PromptSpan.num_lines`) takes fewer positions than it has tokens. Behind it,
positions are smaller than indices by a number that depends on the request's spans alone. Only rotary positions are:
everything else goes by indices.
"""

from array import array
from collections.abc import Mapping, Sequence

from messages.columns import INT32
from messages.ring.spans import PromptSpan
from scheduler_proc.deciding.pages.resource import NO_COLUMNS, Resource, StepRows
from scheduler_proc.deciding.pages.running_request import Chunk
from scheduler_proc.deciding.requests import PendingReq


class SpanColumns(Resource):
    """Adds the columns to steps in which a row needs them."""

    def __init__(self) -> None:
        self._uids: set[int] = set()

    def prepare(self, pending: PendingReq) -> bool:
        if any(span.num_lines or span.is_two_way for span in pending.spans):
            self._uids.add(pending.uid)
        return False

    def on_finished(self, uid: int) -> None:
        self._uids.discard(uid)

    def columns(self, rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        if not self._uids:
            return NO_COLUMNS
        return {**position_columns(rows, chunks), **_last_keys(rows, chunks)}


def position_columns(rows: StepRows, chunks: Sequence[Chunk], distance: int = 0) -> Mapping[str, bytes]:
    """Returns the columns of `Batch` with positions of rotation, of the tokens `distance` before those of the step.

    Those of lines and columns are only there if they differ from others.
    """
    reqs = (*rows.reqs, *(chunk.req for chunk in chunks))
    if not any(span.num_lines for req in reqs for span in req.pending.spans):
        return NO_COLUMNS
    counts = zip(rows.reqs, rows.context_lens, strict=True)
    times = array(INT32, [index - distance - _count_saved(req.pending.spans) for req, index in counts])
    lines, columns = times[:], times[:]
    for req, start, end, _, draft_ids, _ in chunks:
        start, end = start - distance, end - distance + len(draft_ids)
        for found, more in zip((times, lines, columns), _find_axes(req.pending.spans, start, end), strict=True):
            found += more
    are_equal = times == lines == columns
    names = ("rope_positions",) if are_equal else ("rope_positions", "line_positions", "column_positions")
    return {name: axis.tobytes() for name, axis in zip(names, (times, lines, columns), strict=False)}


def _last_keys(rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
    """Returns `Batch.last_keys`, unless all tokens attend to none behind them."""
    found, has_any = rows.context_lens[:], False
    for req, start, end, _, draft_ids, _ in chunks:
        own = array(INT32, range(start, end + len(draft_ids)))
        for span in req.pending.spans:
            first, last = max(start, span.start), min(end, span.end)
            if span.is_two_way and first < last:
                own[first - start : last - start] = array(INT32, [last - 1]) * (last - first)
                has_any = True
        found += own
    return {"last_keys": found.tobytes()} if has_any else NO_COLUMNS


def _count_saved(spans: Sequence[PromptSpan]) -> int:
    """Returns by how much positions behind the spans are smaller than indices."""
    return sum(span.length - max(span.num_lines, span.num_columns) for span in spans if span.num_lines)


def _find_axes(spans: Sequence[PromptSpan], start: int, end: int) -> tuple["array[int]", "array[int]", "array[int]"]:
    """Returns the positions in time, lines and columns of a request's tokens `start` to `end` (exclusive)."""
    saved, index = 0, start
    times, lines, columns = array(INT32), array(INT32), array(INT32)
    for span in (*spans, PromptSpan(end, 0, b"")):
        if not span.num_lines and span.start != end:
            continue
        text = range(index - saved, min(end, span.start) - saved)
        times.extend(text)
        lines.extend(text)
        columns.extend(text)
        first, last, position = max(start, span.start) - span.start, min(end, span.end) - span.start, span.start - saved
        if first < last:
            size = span.num_columns
            top, bottom = first // size, -(-last // size)
            own = slice(first - top * size, last - top * size)
            times += array(INT32, [position]) * (last - first)
            lines += array(INT32, [position + line for line in range(top, bottom) for _ in range(size)])[own]
            columns += (array(INT32, range(position, position + size)) * (bottom - top))[own]
        saved += _count_saved([span])
        index = max(start, span.end)
    return times, lines, columns
