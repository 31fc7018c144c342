"""The plan of one step, and how it becomes the columns of a `Batch`."""

from array import array
from typing import NamedTuple

from messages.columns import INT32, INT64, pack_int32
from messages.steps import Batch, LogitsProcessing
from scheduler_proc.deciding.decode_rows import DecodeRows
from scheduler_proc.deciding.logits_processing import LogitsProcessingColumns
from scheduler_proc.deciding.prompt_scores import ScoredColumns
from scheduler_proc.deciding.requests import Req
from scheduler_proc.deciding.sampling_columns import SamplingColumns

NO_PAGE_BYTES = pack_int32([-1])


class Chunk(NamedTuple):
    """The tokens `start` to `end` (exclusive) of a prompt as a row of one step.

    `samples`: it is the last of the prompt, and the row may have a token after it. `num_scored`: how many tokens of the
    prompt get their logprobs with it.
    """

    req: Req
    start: int
    end: int
    samples: bool
    num_scored: int


def plan_chunk(req: Req, start: int, end: int) -> Chunk:
    """Returns the chunk; all tokens before `start` are computed by then."""
    scores = req.pending.scores
    num_scored = 0 if scores is None else len(scores.span(start, end))
    return Chunk(req, start, end, end == len(req.token_ids) < req.pending.max_len, num_scored)


class _ChunkColumns:
    """The columns of the prefill chunks, in the order in which they come after the decode rows."""

    def __init__(self, num_decode_rows: int) -> None:
        self.num_decode_rows = num_decode_rows
        self.uids: array[int] = array(INT64)
        self.query_lens: array[int] = array(INT32)
        self.context_lens: array[int] = array(INT32)
        self.token_ids: array[int] = array(INT32)
        self.positions: array[int] = array(INT32)
        self.slots: array[int] = array(INT64)
        self.sample_tokens: array[int] = array(INT32)
        self.sample_positions: array[int] = array(INT64)
        self.sampling = SamplingColumns()
        self.scored = ScoredColumns()


class BatchBuilder:
    """Writes steps down as columns. Keeps all positions and all slots as arrays, for slices of them to be copied."""

    def __init__(self, num_pages: int, page_size: int, max_model_len: int):
        self._page_size = page_size
        self._positions: array[int] = array(INT32, range(max_model_len))
        self._slots: array[int] = array(INT64, range(num_pages * page_size))

    def build(self, step_id: int, decode: DecodeRows, chunks: list[Chunk]) -> Batch:
        """Returns the step of all decode rows and these chunks; the pages of their tokens must have been taken."""
        num_decode_rows = len(decode)
        columns = _ChunkColumns(num_decode_rows)
        for chunk in chunks:
            self._append(columns, chunk)
        width = max((len(chunk.req.pages) for chunk in chunks), default=1)
        if num_decode_rows:
            width = max(width, decode.table_width)
        has_processing = decode.sampling.num_with_logits_processors or columns.sampling.num_with_logits_processors
        next_positions = array(INT64, [context_len + 1 for context_len in decode.context_lens])
        return Batch(
            step_id=step_id,
            num_decode_rows=num_decode_rows,
            uids=(decode.uids + columns.uids).tobytes(),
            query_lens=pack_int32([1]) * num_decode_rows + columns.query_lens.tobytes(),
            context_lens=(decode.context_lens + columns.context_lens).tobytes(),
            token_ids=(decode.token_ids + columns.token_ids).tobytes(),
            positions=(decode.context_lens + columns.positions).tobytes(),
            slots=(decode.slots + columns.slots).tobytes(),
            page_tables=_page_tables(decode, chunks, width),
            num_pages_per_row=width,
            sample_tokens=pack_int32(range(num_decode_rows)) + columns.sample_tokens.tobytes(),
            **decode.sampling.joined(columns.sampling),
            sample_positions=(next_positions + columns.sample_positions).tobytes(),
            logits_processing=_logits_processing(decode, chunks) if has_processing else None,
            scored=columns.scored.columns(),
            future_token_indices=decode.future_token_indices.tobytes(),
        )

    def _append(self, columns: _ChunkColumns, chunk: Chunk) -> None:
        req, start, end = chunk.req, chunk.start, chunk.end
        if req.pending.scores is not None:
            columns.scored.add(req.pending.scores, columns.num_decode_rows + len(columns.token_ids), start, end)
        columns.uids.append(req.uid)
        columns.query_lens.append(end - start)
        columns.context_lens.append(start)
        columns.token_ids += req.token_ids[start:end]
        columns.positions += self._positions[start:end]
        self._append_slots(columns.slots, req.pages, start, end)
        if chunk.samples:
            columns.sample_tokens.append(columns.num_decode_rows + len(columns.token_ids) - 1)
            columns.sample_positions.append(end)
            columns.sampling.append(req.pending)

    def _append_slots(self, slots: "array[int]", pages: list[int], start: int, end: int) -> None:
        """Appends the slots of positions `start` to `end` (exclusive) of a row with these pages."""
        size = self._page_size
        for index in range(start // size, -(-end // size)):
            offset = (pages[index] - index) * size  # from positions to slots, within this page
            slots += self._slots[offset + max(start, index * size) : offset + min(end, (index + 1) * size)]


def _logits_processing(decode: DecodeRows, chunks: list[Chunk]) -> LogitsProcessing | None:
    columns, num_decode_rows = LogitsProcessingColumns(), len(decode)
    sampling = [*decode.reqs, *(chunk.req for chunk in chunks if chunk.samples)]
    for row, req in enumerate(sampling):
        pending = req.pending
        if pending.logits_processors is not None:
            num_tokens = len(req.token_ids) + (decode.lead if row < num_decode_rows else 0)
            num_output_tokens = num_tokens - pending.num_prompt_tokens
            columns.add(row, pending.logits_processors, req.token_ids, pending.num_prompt_tokens, num_output_tokens)
    return columns.columns()


def _page_tables(decode: DecodeRows, chunks: list[Chunk], width: int) -> bytes:
    tables = decode.tables.tobytes()
    if decode.reqs and width > decode.table_width:
        row_bytes, padding = 4 * decode.table_width, NO_PAGE_BYTES * (width - decode.table_width)
        tables = b"".join(tables[start : start + row_bytes] + padding for start in range(0, len(tables), row_bytes))
    rows = [pack_int32(req.pages) + NO_PAGE_BYTES * (width - len(req.pages)) for req, *_ in chunks]
    return tables + b"".join(rows)
