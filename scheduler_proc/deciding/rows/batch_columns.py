"""Builds the `Batch` of a planned step."""

from array import array
from collections.abc import Mapping
from typing import Any

from messages.columns import INT32, INT64, pack_int32
from messages.ring.spans import without_spans
from messages.ring.steps import Batch, LogitsProcessing
from scheduler_proc.deciding.pages.running_request import Chunk, DraftRate, Req
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.rows.decode_rows import NO_SLOT, DecodeRows
from scheduler_proc.deciding.sampling.logits_processing import LogitsProcessingColumns
from scheduler_proc.deciding.tasks.prompt_task import PromptTask, TaskChunk

NO_PAGE_BYTES = pack_int32([-1])

NO_COLUMNS: Mapping[str, Any] = {}


def plan_drafts(req: Req, draft_ids: "array[int]", rate: DraftRate | None) -> Chunk:
    """Returns the row of a request in DECODE with draft tokens."""
    end = len(req.token_ids)
    return Chunk(req, end - 1, end, req.outputs_in_decode(len(draft_ids)), draft_ids, rate)


class _ChunkColumns:
    """The columns of the chunks, which follow the decode rows."""

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
        self.sampled: list[tuple[PendingReq, int]] = []
        """The requests that sample, with their numbers of tokens."""
        self.tasks: dict[str, list[TaskChunk[PromptTask]]] = {}
        """By field of `Batch`."""
        self.num_drafts: array[int] = array(INT32)


class BatchBuilder:
    """Builds steps as columns. Keeps arrays of all positions and all slots, from which slices are copied."""

    def __init__(self, num_pages: int, page_size: int, max_model_len: int):
        self._page_size = page_size
        self._positions: array[int] = array(INT32, range(max_model_len))
        self._slots: array[int] = array(INT64, range(num_pages * page_size))
        self._no_chunks = _ChunkColumns(0)

    def build(
        self, step_id: int, decode: DecodeRows, chunks: list[Chunk], others: Mapping[str, Any] = NO_COLUMNS
    ) -> Batch:
        """Returns the step of all decode rows and these chunks, whose pages must have been allocated.

        `others`: columns of resources.
        """
        num_decode_rows = len(decode)
        assert NO_SLOT not in decode.slots, "a row has no page for its token"
        columns = _ChunkColumns(num_decode_rows) if chunks else self._no_chunks
        for chunk in chunks:
            self._append(columns, chunk)
        width = max((len(chunk.req.pages) for chunk in chunks), default=1)
        if num_decode_rows:
            width = max(width, decode.table_width)
        changes_logits = [pending.changes_logits for pending, _ in columns.sampled]
        has_processing = decode.sampling.num_that_change_logits or any(changes_logits)
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
            **(decode.sampling.with_runs(columns.sampled) if chunks else decode.sampling.pack()),
            sample_positions=(next_positions + columns.sample_positions).tobytes(),
            logits_processing=_logits_processing(decode, chunks) if has_processing else None,
            **{field: chunks[0].task.kind.pack(chunks) for field, chunks in columns.tasks.items()},
            future_token_indices=decode.future_token_indices.tobytes(),
            num_drafts=bytes(4 * num_decode_rows) + columns.num_drafts.tobytes() if any(columns.num_drafts) else b"",
            **others,
        )

    def _append(self, columns: _ChunkColumns, chunk: Chunk) -> None:
        req, start, num_drafts, num_sampled = chunk.req, chunk.start, len(chunk.draft_ids), chunk.requested.num_tokens
        end = chunk.end + num_drafts
        task = req.pending.prompt_task
        if task is not None and chunk.requested.num_task:
            first_index = columns.num_decode_rows + len(columns.token_ids)
            columns.tasks.setdefault(task.kind.field, []).append(TaskChunk(task, start, end, first_index))
        columns.uids.append(req.uid)
        columns.query_lens.append(end - start)
        columns.context_lens.append(start)
        columns.token_ids += req.token_ids[start : chunk.end] + chunk.draft_ids
        columns.positions += self._positions[start:end]
        columns.num_drafts.append(num_drafts)
        self._append_slots(columns.slots, req.pages, start, end)
        num_tokens = columns.num_decode_rows + len(columns.token_ids)
        columns.sample_tokens.extend(range(num_tokens - num_sampled, num_tokens))
        columns.sample_positions.extend(range(end - num_sampled + 1, end + 1))
        if num_sampled:
            columns.sampled.append((req.pending, num_sampled))

    def _append_slots(self, slots: "array[int]", pages: list[int], start: int, end: int) -> None:
        """Appends the slots of positions `start` to `end` (exclusive) of a row with these pages."""
        size = self._page_size
        for index in range(start // size, -(-end // size)):
            offset = (pages[index] - index) * size  # from positions to slots, within this page
            slots += self._slots[offset + max(start, index * size) : offset + min(end, (index + 1) * size)]


def _logits_processing(decode: DecodeRows, chunks: list[Chunk]) -> LogitsProcessing | None:
    columns, index = LogitsProcessingColumns(), -1
    for index, (req, context_len) in enumerate(zip(decode.reqs, decode.context_lens, strict=True)):
        _add_processors(columns, index, req, req.token_ids, context_len + 1)
    for req, _, _, requested, draft_ids, _ in chunks:
        for num_drafts in range(requested.num_tokens):
            index += 1
            token_ids = req.token_ids + draft_ids[:num_drafts] if num_drafts else req.token_ids
            _add_processors(columns, index, req, token_ids, len(token_ids))
    return columns.columns()


def _add_processors(
    columns: LogitsProcessingColumns, index: int, req: Req, token_ids: "array[int]", num_tokens: int
) -> None:
    """Adds a request's logits processing for the token after these `num_tokens`, the last of which may be unknown.

    Tokens beyond the request's own are draft tokens.
    """
    pending = req.pending
    if pending.logits_processors is not None:
        num_output_tokens, text_ids = num_tokens - pending.num_prompt_tokens, without_spans(token_ids, pending.spans)
        num_prompt_tokens = pending.num_prompt_tokens - len(token_ids) + len(text_ids)
        columns.add(index, pending.logits_processors, text_ids, num_prompt_tokens, num_output_tokens)
    if pending.grammar is not None:
        bitmask = pending.grammar.bitmask(token_ids[len(pending.token_ids) :])
        if bitmask:
            columns.add_bitmask(index, bitmask)


def _page_tables(decode: DecodeRows, chunks: list[Chunk], width: int) -> bytes:
    tables = decode.tables.tobytes()
    if decode.reqs and width > decode.table_width:
        row_bytes, padding = 4 * decode.table_width, NO_PAGE_BYTES * (width - decode.table_width)
        tables = b"".join(tables[start : start + row_bytes] + padding for start in range(0, len(tables), row_bytes))
    rows = [pack_int32(req.pages) + NO_PAGE_BYTES * (width - len(req.pages)) for req, *_ in chunks]
    return tables + b"".join(rows)
