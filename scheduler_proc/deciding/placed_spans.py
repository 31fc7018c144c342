"""The spans of prompts (`messages/ring/spans.py`): which are accepted, and the column of their rows in a step."""

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from messages.columns import INT32, num_int32
from messages.errors import bad_request
from messages.ring.requests import UserMsg
from messages.ring.spans import PromptSpan, check_spans
from scheduler_proc.deciding.pages.page_keys import MIN_PAGE_TOKENS
from scheduler_proc.deciding.pages.resource import NO_COLUMNS, Resource, StepRows
from scheduler_proc.deciding.pages.running_request import Chunk
from scheduler_proc.deciding.requests import PendingReq

NOT_PLACED: "array[int]" = array(INT32, [-1])


class SpanRows(Protocol):
    """The rows of spans on the device, as `scheduler_proc/computing/model/span_rows.py` keeps them.

    Rows of the digests that `find_needed` returns are not dropped.
    """

    find_needed: Callable[[], Collection[bytes]]

    def find(self, digest: bytes) -> "array[int]":
        """Returns the places of a span's rows in their buffer; empty if the rows are not there."""
        ...


class PlacedSpans(Resource):
    """The rows of a request's spans are in `rows` from the time it is received until it ends.

    Without `rows`, or with smaller pages than `MIN_PAGE_TOKENS`, no request may have spans.
    """

    def __init__(self, rows: SpanRows | None, page_size: int):
        self._rows = rows if page_size >= MIN_PAGE_TOKENS else None
        self._needed: dict[int, Sequence[PromptSpan]] = {}
        """By uid: the spans of requests."""
        if rows is not None:
            rows.find_needed = lambda: {span.digest for spans in self._needed.values() for span in spans}

    def refuse(self, message: UserMsg) -> None:
        if not message.spans:
            return
        if self._rows is None:
            raise bad_request(f"this model takes no spans, or --block-size is below {MIN_PAGE_TOKENS}", "prompt")
        check_spans(message.spans, num_int32(message.input_ids))
        for index, span in enumerate(message.spans):
            num_rows = len(self._rows.find(span.digest))
            if num_rows != span.length:
                raise bad_request(f"span {index} has {span.length} positions and {num_rows} rows", "prompt")

    def prepare(self, pending: PendingReq) -> bool:
        if pending.spans:
            self._needed[pending.uid] = pending.spans
        return False

    def on_finished(self, uid: int) -> None:
        self._needed.pop(uid, None)

    def columns(self, rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        """Returns `Batch.placed_rows`, unless no token of the chunks belongs to a span."""
        if not self._needed or self._rows is None:
            return NO_COLUMNS
        placed = NOT_PLACED * len(rows.reqs)
        for req, start, end, _, draft_ids, _ in chunks:
            own = NOT_PLACED * (end - start + len(draft_ids))
            for span in req.pending.spans:
                first, last = max(start, span.start), min(end, span.end)
                if first < last:
                    found = self._rows.find(span.digest)
                    assert len(found) == span.length, "the rows of a span were dropped"
                    own[first - start : last - start] = found[first - span.start : last - span.start]
            placed += own
        return {"placed_rows": placed.tobytes()} if max(placed) >= 0 else NO_COLUMNS
