"""The rows in DECODE as columns of the next step, updated from step to step so that each row costs little."""

from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import compress

from messages.columns import INT32, INT64
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.rows.sampling_columns import SamplingColumns
from scheduler_proc.deciding.sampling.endings import Ending, find_ending

NO_PAGE = -1
NO_SLOT = -1
NO_SOURCE = -1
UNKNOWN = 0
"""A placeholder for a token that is still being computed; every vocabulary has this id."""


class DecodeRows:
    """One entry per row in each column, in the order in which the rows began to decode.

    `token_ids` holds the last token, whose K and V the next step writes to `slots`; `context_lens` counts the tokens
    before it. `tables` is [rows, table_width], padded with NO_PAGE. A row at the start of a page has no slot until
    `enter_pages`.

    In the result of `advanced`, rows may have one token more than their requests, which is still being computed.
    `future_token_indices` then has its source, as in `Batch`; otherwise it is empty.
    """

    def __init__(self, page_size: int):
        self.page_size = page_size
        self.future_token_indices: array[int] = array(INT32)
        self.reqs: list[Req] = []
        self.uids: array[int] = array(INT64)
        self.attempts: array[int] = array(INT32)
        self.token_ids: array[int] = array(INT32)
        self.context_lens: array[int] = array(INT32)
        self.slots: array[int] = array(INT64)
        self.sampling = SamplingColumns()
        self.tables: array[int] = array(INT32)
        self.table_width = 1
        self._last_context_lens: array[int] = array(INT32)
        self._end_tokens: list[dict[int, Ending]] = []
        self._has_lost_rows = False

    def __len__(self) -> int:
        return len(self.reqs)

    def append(self, req: Req, source: int = NO_SOURCE) -> None:
        """Adds a row whose prompt is computed and whose next token is known or, with a `source`, being computed."""
        is_ahead = source != NO_SOURCE
        context_len = len(req.token_ids) - 1 + is_ahead
        if is_ahead:
            self.future_token_indices.append(source)
        self.reqs.append(req)
        self.uids.append(req.uid)
        self.attempts.append(req.pending.attempt)
        self.token_ids.append(UNKNOWN if is_ahead else req.token_ids[-1])
        self.context_lens.append(context_len)
        self.slots.append(self._slot(req, context_len))
        self.sampling.append(req.pending)
        self._last_context_lens.append(req.pending.max_len - 1)
        self._end_tokens.append(req.pending.end_tokens)
        pages = req.pages[: -(-context_len // self.page_size)]  # a row that was paused may have more
        self._widen(len(pages))
        self.tables.extend(_padded(pages, self.table_width))

    def remove(self, req: Req) -> None:
        """Removes the row of `req`; the others keep their order."""
        row = self.reqs.index(req)
        width = self.table_width
        del self.reqs[row], self.uids[row], self.attempts[row], self.token_ids[row], self.context_lens[row]
        del self.slots[row], self._last_context_lens[row], self._end_tokens[row]
        del self.tables[row * width : (row + 1) * width]
        if self.future_token_indices:
            del self.future_token_indices[row]
        self.sampling.delete(row, req.pending)
        self._has_lost_rows = True

    def advanced(self, sources: Mapping[int, int]) -> "DecodeRows":
        """Returns the rows with one more token for each request in `sources`, which has the sources by uid.

        The other rows are unchanged.
        """
        rows = DecodeRows(self.page_size)
        rows.reqs, rows.uids, rows.attempts = self.reqs[:], self.uids[:], self.attempts[:]
        rows.future_token_indices = array(INT32, [sources.get(uid, NO_SOURCE) for uid in self.uids])
        rows.token_ids = array(INT32, [UNKNOWN]) * len(self.reqs)
        rows.context_lens = array(INT32, [context_len + 1 for context_len in self.context_lens])
        rows.slots = array(INT64, [slot + 1 for slot in self.slots])
        if NO_SOURCE in rows.future_token_indices:
            for row in [row for row, source in enumerate(rows.future_token_indices) if source == NO_SOURCE]:
                rows.token_ids[row], rows.context_lens[row] = self.token_ids[row], self.context_lens[row]
                rows.slots[row] = self.slots[row]
        rows.sampling = self.sampling.copy()
        rows.tables, rows.table_width = self.tables[:], self.table_width
        rows._last_context_lens, rows._end_tokens = self._last_context_lens[:], self._end_tokens[:]
        return rows

    def kept(self, is_kept: Sequence[bool]) -> "DecodeRows":
        """Returns the rows for which `is_kept` is true."""

        def keep(column: "array[int]") -> "array[int]":
            return array(column.typecode, compress(column, is_kept))

        rows, width = DecodeRows(self.page_size), self.table_width
        rows.reqs = list(compress(self.reqs, is_kept))
        rows.uids, rows.attempts, rows.token_ids = keep(self.uids), keep(self.attempts), keep(self.token_ids)
        rows.context_lens, rows.slots = keep(self.context_lens), keep(self.slots)
        rows.future_token_indices = keep(self.future_token_indices)
        rows.sampling, rows.table_width = self.sampling.kept(is_kept, [req.pending for req in rows.reqs]), width
        for row in compress(range(len(self.reqs)), is_kept):
            rows.tables += self.tables[row * width : (row + 1) * width]
        rows._last_context_lens = keep(self._last_context_lens)
        rows._end_tokens = list(compress(self._end_tokens, is_kept))
        return rows

    def full_reqs(self) -> list[Req]:
        """Returns the requests that have reached their maximum length."""
        lengths = zip(self.context_lens, self._last_context_lens, strict=True)
        return [self.reqs[row] for row, (now, last) in enumerate(lengths) if now >= last]

    def reqs_without_slot(self) -> list[tuple[Req, int]]:
        """Returns the rows whose next token begins a page, in order, with their numbers of tokens including it."""
        size, rows = self.page_size, enumerate(self.context_lens)
        return [(self.reqs[row], context_len + 1) for row, context_len in rows if not context_len % size]

    def enter_pages(self) -> None:
        """Sets the slot and the page table of rows that begin a page, once they have it."""
        self._narrow()
        size = self.page_size
        for row, context_len in enumerate(self.context_lens):
            if not context_len % size:
                index, pages = context_len // size, self.reqs[row].pages
                if index >= len(pages):
                    self.slots[row] = NO_SLOT
                    continue
                page = pages[index]
                self._widen(index + 1)
                self.slots[row] = page * size
                self.tables[row * self.table_width + index] = page

    def advance(self, rows: Sequence[int], next_tokens: "array[int]") -> list[tuple[int, Ending]]:
        """Appends a next token to each of these rows (ascending); returns the rows that end with it, and how."""
        if len(rows) == len(self.reqs):
            return self._advance_all(next_tokens)
        ended: list[tuple[int, Ending]] = []
        for row, token_id in zip(rows, next_tokens, strict=True):
            self.reqs[row].token_ids.append(token_id)
            self.token_ids[row] = token_id
            self.context_lens[row] += 1
            self.slots[row] += 1
            ending = find_ending(self._end_tokens[row], token_id, self.context_lens[row], self._last_context_lens[row])
            if ending is not None:
                ended.append((row, ending))
        return ended

    def _advance_all(self, next_tokens: "array[int]") -> list[tuple[int, Ending]]:
        for req, token_id in zip(self.reqs, next_tokens, strict=True):
            req.token_ids.append(token_id)
        self.token_ids = next_tokens
        self.context_lens = array(INT32, [context_len + 1 for context_len in self.context_lens])
        self.slots = array(INT64, [slot + 1 for slot in self.slots])
        endings = map(find_ending, self._end_tokens, next_tokens, self.context_lens, self._last_context_lens)
        return [(row, ending) for row, ending in enumerate(endings) if ending is not None]

    def advance_to(self, uids: Collection[int]) -> None:
        """Updates the rows of these requests to their last tokens."""
        for row, req in enumerate(self.reqs):
            if req.uid in uids:
                context_len = len(req.token_ids) - 1
                num_pages = -(-context_len // self.page_size)
                self.token_ids[row], self.context_lens[row] = req.token_ids[-1], context_len
                self.slots[row] = self._slot(req, context_len)
                self._widen(num_pages)
                start = row * self.table_width
                self.tables[start : start + num_pages] = array(INT32, req.pages[:num_pages])

    def check(self) -> None:
        """Asserts that the columns match the requests."""
        for row, req in enumerate(self.reqs):
            context_len = req.num_computed_tokens
            assert self.uids[row] == req.uid, "a row has another's uid"
            assert self.attempts[row] == req.pending.attempt, "a row has another's attempt"
            assert self.token_ids[row] == req.token_ids[-1], "a row has another's token"
            assert self.context_lens[row] == context_len, "a row has another's length"
            offset = context_len % self.page_size
            num_entered = context_len // self.page_size + (1 if offset else self._has_entered(row))
            pages = req.pages[:num_entered]  # it may have more: for draft tokens, or the step after the one in flight
            assert self._table(row) == _padded(pages, self.table_width), "a row has another's pages"
            assert not offset or self.slots[row] == pages[-1] * self.page_size + offset, "a row has another's slot"
        assert len(self.tables) == len(self.reqs) * self.table_width, "page tables are left over"
        self.sampling.check([req.pending for req in self.reqs])

    def _slot(self, req: Req, context_len: int) -> int:
        offset = context_len % self.page_size
        return req.pages[context_len // self.page_size] * self.page_size + offset if offset else NO_SLOT

    def _has_entered(self, row: int) -> bool:
        """True if a row at the start of a page has that page in its table."""
        index = self.context_lens[row] // self.page_size
        return index < self.table_width and self.tables[row * self.table_width + index] != NO_PAGE

    def _table(self, row: int) -> list[int]:
        return self.tables[row * self.table_width : (row + 1) * self.table_width].tolist()

    def _widen(self, num_pages: int) -> None:
        if num_pages > self.table_width:
            self._set_width(max(num_pages, 2 * self.table_width))

    def _narrow(self) -> None:
        if self._has_lost_rows:
            self._has_lost_rows = False
            longest = max((len(req.pages) for req in self.reqs), default=1)
            if longest * 4 <= self.table_width:
                self._set_width(longest)

    def _set_width(self, width: int) -> None:
        """Copies the tables to another width; doubling and quartering make this rare."""
        old, kept = self.table_width, min(self.table_width, width)
        padding = array(INT32, [NO_PAGE]) * (width - kept)
        tables: array[int] = array(INT32)
        for start in range(0, len(self.tables), old):
            tables += self.tables[start : start + kept] + padding
        self.tables, self.table_width = tables, width


def _padded(pages: list[int], width: int) -> list[int]:
    return pages + [NO_PAGE] * (width - len(pages))
