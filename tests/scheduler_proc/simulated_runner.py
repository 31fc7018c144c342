"""A runner without a model: its "K and V" are hashes, so a wrong page, slot or position changes the output.

What a slot holds depends on every token before it, as real K and V do; the next token depends on everything that the
row reads through its page table. `expected_output` returns the output of a request by the same rule, without pages.
"""

import random
import zlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from messages.columns import pack_float32, pack_int32, unpack_int32, unpack_int64
from messages.ring.axes import columns_of
from messages.ring.requests import SamplingParams
from messages.ring.spans import PromptSpan, without_spans
from messages.ring.steps import SAMPLED, Batch, ForwardOutput, LogprobColumns
from tests.scheduler_proc.simulated_adapters import adapted
from tests.scheduler_proc.simulated_edits import NOTHING, Edits, expected_edits, read_edits
from tests.scheduler_proc.simulated_grammar import allowed_next
from tests.scheduler_proc.simulated_pooling import pool
from tests.scheduler_proc.simulated_spans import SimulatedSpanRows, embedded_ids

START = 0x5EED
NO_PARAMS = SamplingParams(max_tokens=1)

NUM_RANKED = 512
"""Only the first ids can be alternatives: ranking a real vocabulary takes 50 ms a token."""

Logprob = tuple[int, float, list[tuple[int, float]]]
"""A token, its logprob, and its alternatives with theirs."""


def next_value(before: int, token_id: int, position: int) -> int:
    """Returns what the slot of a token holds."""
    return zlib.crc32(b"%d,%d,%d" % (before, token_id, position))


OPTIONAL = "top_n_sigmas", "typical_ps", "xtc_probabilities", "xtc_thresholds"


def _optional(batch: Batch, name: str) -> "array[float]":
    column = columns_of(Batch)[name]
    return array("f", getattr(batch, name) or column.filled(batch.num_sampled, column.fill))


def choose(
    values: Sequence[int], params: tuple[float, ...], position: int, vocab_size: int, edits: Edits = NOTHING
) -> int:
    """Returns the next token after a row with these slots, -1 if all are banned.

    Sampling rows depend on seed and position too, and rows with biases or penalties on each of their values.
    """
    noise = b"" if params[0] == 0 else repr((params, position)).encode()
    if edits.biases or edits.penalties:
        noise += repr((edits.biases, edits.penalties)).encode()
    allowed = edits.allowed or range(vocab_size)
    candidates = sorted(set(allowed).difference(edits.banned)) if edits.banned or edits.allowed else allowed
    digest = zlib.crc32(array("q", values).tobytes() + noise)
    return candidates[digest % len(candidates)] if candidates else -1


def logprob(value: int, token_id: int) -> float:
    """Returns the logprob of a token after the token whose slot holds `value`."""
    return zlib.crc32(b"%d:%d" % (value, token_id)) % 4096 / -64


def logprob_with_top(value: int, token_id: int, num_top: int, vocab_size: int) -> tuple[float, list[tuple[int, float]]]:
    """Returns the logprob of a token, and the likeliest ones with theirs."""
    others = range(min(vocab_size, NUM_RANKED)) if num_top else ()
    logprobs = sorted((-logprob(value, other), other) for other in others)
    return logprob(value, token_id), [(other, -negative) for negative, other in logprobs[:num_top]]


def pack_logprobs(values: Sequence[tuple[int, int]], num_top: int, vocab_size: int) -> LogprobColumns:
    """Returns the columns of (what the slot before holds, token)."""
    positions = [logprob_with_top(value, token_id, num_top, vocab_size) for value, token_id in values]
    return LogprobColumns(
        pack_int32(token_id for _, token_id in values),
        pack_float32(logprob for logprob, _ in positions),
        num_top,
        pack_int32(token_id for _, top in positions for token_id, _ in top),
        pack_float32(logprob for _, top in positions for _, logprob in top),
    )


class SimulatedPages:
    """The slots of a runner and notes about its pages, where they outlive both."""

    def __init__(self, num_pages: int, page_size: int, num_window_pages: int = 0, num_state_slots: int = 0):
        self.page_size = page_size
        self.slots: list[tuple[int, int] | None] = [None] * (num_pages * page_size)
        self.lost_pages: set[int] = set()
        self.notes = memoryview(bytearray(num_pages * (80 + 4 * page_size) + 16 * (num_window_pages + num_state_slots)))
        self.window_slots: dict[int, tuple[int, int]] = {}
        self.state_slots: dict[int, tuple[int, int]] = {}

    def checksum(self, page: int, *, is_window: bool = False) -> int:
        if is_window:
            slots = range(page * self.page_size, (page + 1) * self.page_size)
            return zlib.crc32(repr([self.window_slots.get(slot) for slot in slots]).encode())
        return zlib.crc32(repr(self.slots[page * self.page_size : (page + 1) * self.page_size]).encode())

    def checksum_state(self, slot: int) -> int:
        return zlib.crc32(repr(self.state_slots.get(slot)).encode())

    def damage(self, page: int) -> None:
        self.slots[page * self.page_size] = (0, -1)


class Sampled(NamedTuple):
    """A next token, with what the slot of the one before it holds; the index of its row."""

    token_id: int
    last_value: int
    row: int


class SimulatedRunner:
    """Same interface as the real one. `poison` tokens make the step raise, `nan` tokens make their row's logits bad.

    With `withholds`, a row now and then gets fewer tokens than it samples, perhaps none.
    """

    can_overlap = can_plan_ahead = False
    num_stages = 1
    degraded = ""
    placement: dict[str, str] = {}  # noqa: RUF012 (never written)
    memory_gauges = dict[str, float]
    draft_runner = None
    page_memory = None
    page_store = None
    span_rows: SimulatedSpanRows | None = None
    windows: tuple[int, int] | None = None
    states: tuple[int, int] | None = None

    def __init__(self, num_pages: int, page_size: int, vocab_size: int, max_num_batched_tokens: int = 32):
        self.num_pages = num_pages
        self.max_num_batched_tokens = max_num_batched_tokens
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.slots: list[tuple[int, int] | None] = [None] * (num_pages * page_size)
        self.window_slots: dict[int, tuple[int, int]] = {}
        self.state_slots: dict[int, tuple[int, int]] = {}
        self.adapter_keys: dict[int, int] = {}
        """The number that is added to the token ids of rows, by the slot of their adapter."""
        self.poison: set[int] = set()
        self.nan: set[int] = set()
        self.withholds: random.Random | None = None
        self.is_wrong = False
        """A step was none that a device could run, which a scheduler takes for a fault of the device."""
        self.batches: list[Batch] = []

    def place_adapter(self, slot: int, key: int) -> None:
        self.adapter_keys[slot] = key

    def launch(self, batch: Batch) -> ForwardOutput:
        return self.run(batch)

    def run(self, batch: Batch) -> ForwardOutput:
        try:
            return self._run(batch)
        except AssertionError:
            self.is_wrong = True
            raise

    def _run(self, batch: Batch) -> ForwardOutput:
        self.batches.append(batch)
        check_shapes(batch)
        token_ids, positions = unpack_int32(batch.token_ids), unpack_int32(batch.positions)
        if self.poison.intersection(token_ids):
            self.spoil(batch)
            raise ArithmeticError("a poisoned token")
        self._embed(batch, token_ids)
        slots, tables = unpack_int64(batch.slots), unpack_int32(batch.page_tables)
        assert len(set(slots)) == len(slots), "two tokens are written to one slot"
        width, start, row_tables = batch.num_pages_per_row, 0, []
        query_lens, context_lens = unpack_int32(batch.query_lens), unpack_int32(batch.context_lens)
        adapter_slots = unpack_int32(batch.adapter_slots) or [-1] * batch.num_rows
        assert len(adapter_slots) == batch.num_rows
        for row, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
            table = tables[row * width : (row + 1) * width]
            end = start + query_len
            assert list(positions[start:end]) == list(range(context_len, context_len + query_len))
            expected = [self._slot(table, position) for position in positions[start:end]]
            assert list(slots[start:end]) == expected, "the slots are not those of the page table"
            key = self._key(adapter_slots[row])
            self._write(table, [token_id + key for token_id in token_ids[start:end]], context_len)
            row_tables.append(table)
            start = end
        if self.windows is not None:
            self._run_windowed(batch, *self.windows)
        if self.states is not None:
            self._run_recurrent(batch, self.states[0])
        sampled = self._sample(batch, row_tables)
        num_logprobs = unpack_int32(batch.num_logprobs) or [-1] * len(sampled)
        is_notified, counts = self._withhold(sampled)
        reported = [
            (one, count)
            for one, count, is_reported in zip(sampled, num_logprobs, is_notified, strict=True)
            if is_reported
        ]
        positions = [(one.last_value, one.token_id) for one, count in reported if count >= 0]
        logprobs = pack_logprobs(positions, max(num_logprobs), self.vocab_size) if positions else None
        next_tokens = pack_int32(one.token_id for one, _ in reported)
        pooled = pool(batch, lambda index: self._held(slots[index]))
        return ForwardOutput(batch.step_id, next_tokens, logprobs, self._logprob(batch, slots), counts, pooled)

    def _embed(self, batch: Batch, token_ids: "array[int]") -> None:
        """Puts the rows of spans in place of the ids of their tokens."""
        assert len(batch.placed_rows) in (0, len(batch.token_ids))
        if batch.placed_rows:
            assert self.span_rows is not None
            self.span_rows.overwrite(token_ids, batch.placed_rows)

    def _key(self, adapter_slot: int) -> int:
        """Returns what the adapter in the slot adds to tokens, 0 without one."""
        return self.adapter_keys[adapter_slot] if adapter_slot >= 0 else 0

    def _run_windowed(self, batch: Batch, window: int, num_pages: int) -> None:
        """Writes the tokens to their window slots, and reads what each token sees: the same as in the other slots."""
        slots, tables = unpack_int64(batch.window_slots), unpack_int32(batch.window_page_tables)
        assert len(set(slots)) == len(slots), "two tokens are written to one window slot"
        assert len(batch.window_page_tables) == len(batch.page_tables)
        whole_tables, width, start = unpack_int32(batch.page_tables), batch.num_pages_per_row, 0
        rows: list[tuple[array[int], array[int], int, int]] = []
        for row, (length, context) in enumerate(
            zip(unpack_int32(batch.query_lens), unpack_int32(batch.context_lens), strict=True)
        ):
            place = slice(row * width, (row + 1) * width)
            table, whole = tables[place], whole_tables[place]
            for position in range(context, context + length):
                slot = self._slot(table, position)
                assert slot == slots[start], "the window slots are not those of the page table"
                assert slot < num_pages * self.page_size
                held = self.slots[self._slot(whole, position)]
                assert held is not None
                self.window_slots[slot] = held
                start += 1
            rows.append((table, whole, context, context + length))
        for table, whole, begin, end in rows:
            for position in range(max(0, begin - window + 1), end):
                held = self.window_slots.get(self._slot(table, position))
                assert held is not None, "a window slot is read that was never written"
                assert held == self.slots[self._slot(whole, position)], "a window slot holds another token"

    def spoil(self, batch: Batch) -> None:
        """Does what a step that fails may have done: it has stored some states, and others in part."""
        for slot in unpack_int32(batch.state_slots):
            if slot >= 0:
                self.state_slots[slot] = (-1, slot)

    def _run_recurrent(self, batch: Batch, num_slots: int) -> None:
        """Advances the state of each row, which is what the slots of its tokens hold, one after another."""
        sources = unpack_int32(batch.state_sources) or array("i", [-1]) * batch.num_rows
        slots, start = unpack_int32(batch.state_slots), 0
        assert len(sources) == batch.num_rows
        assert len(slots) == batch.num_tokens
        stored = [slot for slot in slots if slot >= 0]
        assert len(set(stored)) == len(stored), "two states are stored in one slot"
        assert all(slot < num_slots for slot in stored)
        token_ids, kv_slots = unpack_int32(batch.token_ids), unpack_int64(batch.slots)
        self._embed(batch, token_ids)
        context_lens, rows = unpack_int32(batch.context_lens), unpack_int32(batch.query_lens)
        states = [self.state_slots.get(source) for source in sources]
        adapter_slots = unpack_int32(batch.adapter_slots) or [-1] * batch.num_rows
        for row, (source, context_len, num_tokens) in enumerate(zip(sources, context_lens, rows, strict=True)):
            others = {*slots[:start], *slots[start + num_tokens :]} - {-1}
            assert source not in others, "a row reads a state that another one stores"
            assert (source < 0) == (not context_len), "a row begins without its state"
            state = (0, START) if source < 0 else states[row]
            assert state is not None, "a state is read that was never stored"
            assert state[0] == context_len, "a state is read of another token"
            for token in range(start, start + num_tokens):
                token_id = token_ids[token] + self._key(adapter_slots[row])
                state = state[0] + 1, next_value(state[1], token_id, state[0])
                assert self.slots[kv_slots[token]] == (state[0] - 1, state[1]), "a state of other tokens"
                if slots[token] >= 0:
                    self.state_slots[slots[token]] = state
            start += num_tokens
            assert slots[start - 1] >= 0, "a row does not store its last state"

    def _withhold(self, sampled: list[Sampled]) -> tuple[list[bool], bytes]:
        """Returns which of the tokens are in the result, and the column with their number per row."""
        if self.withholds is None:
            return [True] * len(sampled), b""
        num_sampled = Counter(one.row for one in sampled)
        counts = {
            row: self.withholds.choice((num, num, self.withholds.randint(0, num))) for row, num in num_sampled.items()
        }
        is_notified: list[bool] = []
        for row, num in num_sampled.items():
            is_notified += [index < counts[row] for index in range(num)]
        return is_notified, pack_int32(counts.values())

    def _logprob(self, batch: Batch, slots: "array[int]") -> LogprobColumns | None:
        if batch.prompt_logprobs is None:
            return None
        values: list[tuple[int, int]] = []
        targets = unpack_int32(batch.prompt_logprobs.target_ids)
        for index, target in zip(unpack_int32(batch.prompt_logprobs.token_indices), targets, strict=True):
            values.append((self._held(slots[index]), target))
        return pack_logprobs(values, batch.prompt_logprobs.num_top, self.vocab_size)

    def _held(self, slot: int) -> int:
        held = self.slots[slot]
        assert held is not None
        return held[1]

    def _slot(self, table: "array[int]", position: int) -> int:
        page = table[position // self.page_size]
        assert page >= 0, "the page table is too short"
        return page * self.page_size + position % self.page_size

    def _read(self, table: "array[int]", position: int) -> int:
        held = self.slots[self._slot(table, position)]
        assert held is not None, "a slot is read that was never written"
        assert held[0] == position, "a slot holds another position"
        return held[1]

    def _write(self, table: "array[int]", token_ids: Sequence[int], position: int) -> None:
        value = self._read(table, position - 1) if position else START
        for token_id in token_ids:
            value = next_value(value, token_id, position)
            self.slots[self._slot(table, position)] = (position, value)
            position += 1

    def _sample(self, batch: Batch, tables: list["array[int]"]) -> list[Sampled]:
        """Returns the next tokens. Reads after all rows have written, as every layer of a model does."""
        columns = (
            array("f", batch.temperatures),
            array("f", batch.top_ps),
            unpack_int32(batch.top_ks),
            array("f", batch.min_ps),
            unpack_int64(batch.seeds),
            *(_optional(batch, name) for name in OPTIONAL),
        )
        sampled: list[Sampled] = []
        edits = read_edits(batch.logits_processing)
        sample_positions = unpack_int64(batch.sample_positions)
        token_ids, positions = unpack_int32(batch.token_ids), unpack_int32(batch.positions)
        rows = rows_of_samples(batch)
        for index, (row, place) in enumerate(zip(rows, unpack_int32(batch.sample_tokens), strict=True)):
            length = positions[place] + 1
            values = [self._read(tables[row], position) for position in range(length)]
            assert sample_positions[index] == length, "the sampled token would have another position"
            params = tuple(column[index] for column in columns)
            token_id = choose(values, params, length, self.vocab_size, edits.get(index, NOTHING))
            sampled.append(Sampled(-1 if token_ids[place] in self.nan else token_id, values[-1], row))
        return sampled


def rows_of_samples(batch: Batch) -> list[int]:
    """Returns the row of each token after which one is sampled."""
    ends = list(accumulate(unpack_int32(batch.query_lens)))
    return [bisect_right(ends, place) for place in unpack_int32(batch.sample_tokens)]


def check_shapes(batch: Batch) -> None:
    """Asserts what `Batch` promises about its columns."""
    query_lens = unpack_int32(batch.query_lens)
    num_rows, num_tokens = len(query_lens), sum(query_lens)
    sample_tokens = list(unpack_int32(batch.sample_tokens))
    assert len(batch.uids) == 8 * num_rows
    assert len(batch.context_lens) == 4 * num_rows
    assert len(batch.page_tables) == 4 * num_rows * batch.num_pages_per_row
    assert len(batch.token_ids) == len(batch.positions) == 4 * num_tokens
    assert len(batch.slots) == 8 * num_tokens
    assert sample_tokens == sorted(set(sample_tokens))
    assert sample_tokens[: batch.num_decode_rows] == list(range(batch.num_decode_rows))
    assert all(length == 1 for length in query_lens[: batch.num_decode_rows])
    assert min(query_lens) >= 1
    check_drafts(batch)
    for name, column in columns_of(Batch).items():
        if column.axis is SAMPLED and not (column.is_optional and not getattr(batch, name)):
            assert len(getattr(batch, name)) == column.itemsize * len(sample_tokens), name
    if batch.prompt_logprobs is not None:
        indices = list(unpack_int32(batch.prompt_logprobs.token_indices))
        assert indices == sorted(set(indices))
        assert indices
        assert indices[-1] < num_tokens
        assert len(batch.prompt_logprobs.target_ids) == 4 * len(indices)


def check_drafts(batch: Batch) -> None:
    """Asserts that a row samples after each draft token and the one before, and no other row more than once."""
    num_drafts = list(unpack_int32(batch.num_drafts)) or [0] * batch.num_rows
    assert not batch.num_drafts or any(num_drafts)
    assert not any(num_drafts[: batch.num_decode_rows])
    num_sampled = Counter(rows_of_samples(batch))
    for row, (length, count) in enumerate(zip(unpack_int32(batch.query_lens), num_drafts, strict=True)):
        assert num_sampled[row] == count + 1 if count else num_sampled[row] <= 1
        assert count in (0, length - 1)


def values_of(token_ids: Sequence[int], params: SamplingParams = NO_PARAMS) -> list[int]:
    """Returns what the slots of these tokens hold."""
    values: list[int] = []
    for position, token_id in enumerate(token_ids):
        values.append(next_value(values[-1] if values else START, adapted(params, token_id), position))
    return values


def expected_output(
    prompt: Sequence[int],
    params: SamplingParams,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: Sequence[int] = (),
    spans: Sequence[PromptSpan] = (),
) -> list[int]:
    """Returns the tokens that an undisturbed request gets, its end token included; fewer where all are banned."""
    values = values_of(embedded_ids(prompt, spans), params)
    text = list(without_spans(array("i", prompt), spans))
    value = values[-1] if values else START
    temperature = 0.0 if params.is_greedy else params.temperature
    optional = params.top_n_sigma, params.typical_p, params.xtc_probability, params.xtc_threshold
    floats = array("f", (temperature, params.top_p, params.min_p, *optional))
    columns = (floats[0], floats[1], params.top_k, floats[2], params.seed, *floats[3:])
    output: list[int] = []
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    while len(output) < params.max_tokens and len(values) < max_model_len:
        of_grammar = allowed_next(params, output, eos_token_ids, vocab_size)
        if of_grammar is not None and not of_grammar:
            break
        edits = expected_edits(params, text + output, len(text), eos_token_ids, of_grammar)
        token_id = choose(values, columns, len(values), vocab_size, edits)
        if token_id < 0:
            break
        output.append(token_id)
        if token_id in ends:
            break
        value = next_value(value, adapted(params, token_id), len(values))
        values.append(value)
    return output


def expected_logprobs(
    token_ids: Sequence[int],
    start: int,
    num_top: int,
    vocab_size: int,
    params: SamplingParams = NO_PARAMS,
    spans: Sequence[PromptSpan] = (),
) -> list[Logprob]:
    """Returns what is known of each token from position `start` on, which is at least 1."""
    values = zip(values_of(embedded_ids(token_ids, spans), params), token_ids[1:], strict=False)
    return [
        (following, *logprob_with_top(value, following, num_top, vocab_size))
        for value, following in list(values)[start - 1 :]
    ]


def unpack_logprobs(columns: LogprobColumns, num_top: int) -> list[Logprob]:
    """Returns the same of columns, which may hold more alternatives than `num_top`."""
    token_ids, logprobs = unpack_int32(columns.token_ids), array("f", columns.logprobs)
    top_ids, top_logprobs = unpack_int32(columns.top_ids), array("f", columns.top_logprobs)
    width = columns.num_top
    assert width >= num_top
    assert len(top_ids) == len(top_logprobs) == width * len(token_ids)
    tops = [list(zip(top_ids, top_logprobs, strict=True))[row * width :][:num_top] for row in range(len(token_ids))]
    return list(zip(token_ids, logprobs, tops, strict=True))
