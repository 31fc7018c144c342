"""The spans of prompts (`messages/ring/spans.py`): which are accepted, and the column of their rows in a step."""

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from messages.columns import INT32, num_int32
from messages.errors import bad_request
from messages.ring.requests import UserMsg
from messages.ring.spans import check_spans
from scheduler_proc.deciding.pages.page_keys import MIN_PAGE_TOKENS
from scheduler_proc.deciding.rows.batch_columns import Chunk
from scheduler_proc.deciding.stages import Stages

NOT_PLACED: "array[int]" = array(INT32, [-1])

NO_COLUMNS: Mapping[str, bytes] = {}


class SpanRows(Protocol):
    """The rows of spans on the device, as `scheduler_proc/computing/model/span_rows.py` keeps them.

    Rows of the digests that `find_needed` returns are not dropped.
    """

    find_needed: Callable[[], Collection[bytes]]

    def find(self, digest: bytes) -> "array[int]":
        """Returns the places of a span's rows in their buffer; empty if the rows are not there."""
        ...


class PlacedSpans:
    """The rows of a request's spans are in `rows` from the time it is received until it ends.

    Without `rows` no request may have spans.
    """

    def __init__(self, rows: SpanRows | None, stages: Stages, page_size: int):
        self._rows = rows
        self._page_size = page_size
        if rows is not None:
            rows.find_needed = lambda: {span.digest for each in stages.requests.values() for span in each.spans}

    def check(self, message: UserMsg) -> None:
        """Raises `RequestError` for a request with spans that no step could place."""
        if not message.spans:
            return
        check_spans(message.spans, num_int32(message.input_ids))
        if self._rows is None:
            raise bad_request("this model takes no spans in prompts", "prompt")
        if self._page_size < MIN_PAGE_TOKENS:
            raise bad_request(f"spans in prompts need a --block-size of at least {MIN_PAGE_TOKENS}", "prompt")
        for index, span in enumerate(message.spans):
            num_rows = len(self._rows.find(span.digest))
            if num_rows != span.length:
                raise bad_request(f"span {index} has {span.length} positions and {num_rows} rows", "prompt")

    def columns(self, num_decode_rows: int, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        """Returns `Batch.placed_rows` of a step, which has none if no token of its chunks belongs to a span."""
        if not any(chunk.req.pending.spans for chunk in chunks):
            return NO_COLUMNS
        assert self._rows is not None
        placed = NOT_PLACED * num_decode_rows
        for req, start, end, _, draft_ids, _ in chunks:
            own = NOT_PLACED * (end - start + len(draft_ids))
            for span in req.pending.spans:
                first, last = max(start, span.start), min(end, span.end)
                if first < last:
                    rows = self._rows.find(span.digest)
                    assert len(rows) == span.length, "the rows of a span were dropped"
                    own[first - start : last - start] = rows[first - span.start : last - span.start]
            placed += own
        return {"placed_rows": placed.tobytes()} if max(placed) >= 0 else NO_COLUMNS
