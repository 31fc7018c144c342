"""A runner without a model: its "K and V" are hashes, so a wrong page, slot or position changes the output.

What a slot holds depends on every token before it, as real K and V do; the next token depends on everything that the
row reads through its page table. `expected_output` says what a request must get, by the same rule without any pages.
"""

import zlib
from array import array
from collections.abc import Sequence

from messages.columns import pack_int32, unpack_int32, unpack_int64
from messages.requests import SamplingParams
from messages.steps import Batch, ForwardOutput

START = 0x5EED


def next_value(before: int, token_id: int, position: int) -> int:
    """Returns what the slot of a token holds."""
    return zlib.crc32(b"%d,%d,%d" % (before, token_id, position))


def choose(values: Sequence[int], params: tuple[float, ...], position: int, vocab_size: int) -> int:
    """Returns the next token after a row with these slots; sampling rows depend on seed and position too."""
    noise = b"" if params[0] == 0 else repr((params, position)).encode()
    return zlib.crc32(array("q", values).tobytes() + noise) % vocab_size


class SimulatedRunner:
    """Same interface as the real one. `poison` tokens make the step raise, `nan` tokens make their row's logits bad."""

    def __init__(self, num_pages: int, page_size: int, vocab_size: int, max_num_batched_tokens: int = 32):
        self.num_pages = num_pages
        self.max_num_batched_tokens = max_num_batched_tokens
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.slots: list[tuple[int, int] | None] = [None] * (num_pages * page_size)
        self.poison: set[int] = set()
        self.nan: set[int] = set()
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> ForwardOutput:
        self.batches.append(batch)
        check_shapes(batch)
        token_ids, positions = unpack_int32(batch.token_ids), unpack_int32(batch.positions)
        if self.poison.intersection(token_ids):
            raise ArithmeticError("a poisoned token")
        slots, tables = unpack_int64(batch.slots), unpack_int32(batch.page_tables)
        assert len(set(slots)) == len(slots), "two tokens are written to one slot"
        width, start, rows = batch.num_pages_per_row, 0, []
        query_lens, context_lens = unpack_int32(batch.query_lens), unpack_int32(batch.context_lens)
        for row, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
            table = tables[row * width : (row + 1) * width]
            end = start + query_len
            assert list(positions[start:end]) == list(range(context_len, context_len + query_len))
            expected = [self._slot(table, position) for position in positions[start:end]]
            assert list(slots[start:end]) == expected, "the slots are not those of the page table"
            self._write(table, token_ids[start:end], context_len)
            rows.append((table, context_len + query_len, token_ids[end - 1]))
            start = end
        return ForwardOutput(batch.step_id, pack_int32(self._sample(batch, rows)))

    def _slot(self, table: "array[int]", position: int) -> int:
        page = table[position // self.page_size]
        assert page >= 0, "the page table is too short"
        return page * self.page_size + position % self.page_size

    def _read(self, table: "array[int]", position: int) -> int:
        held = self.slots[self._slot(table, position)]
        assert held is not None, "a slot is read that was never written"
        assert held[0] == position, "a slot holds another position"
        return held[1]

    def _write(self, table: "array[int]", token_ids: "array[int]", position: int) -> None:
        value = self._read(table, position - 1) if position else START
        for token_id in token_ids:
            value = next_value(value, token_id, position)
            self.slots[self._slot(table, position)] = (position, value)
            position += 1

    def _sample(self, batch: Batch, rows: list[tuple["array[int]", int, int]]) -> list[int]:
        """Reads after all rows have written, as every layer of a model does."""
        columns = (
            array("f", batch.temperatures),
            array("f", batch.top_ps),
            unpack_int32(batch.top_ks),
            array("f", batch.min_ps),
            unpack_int64(batch.seeds),
        )
        tokens: list[int] = []
        sample_positions = unpack_int64(batch.sample_positions)
        for index, row in enumerate(unpack_int32(batch.sample_rows)):
            table, length, last_token = rows[row]
            values = [self._read(table, position) for position in range(length)]
            assert sample_positions[index] == length, "the sampled token would have another position"
            params = tuple(column[index] for column in columns)
            token = choose(values, params, length, self.vocab_size)
            tokens.append(-1 if last_token in self.nan else token)
        return tokens


def check_shapes(batch: Batch) -> None:
    """Asserts what `Batch` promises about its columns."""
    query_lens = unpack_int32(batch.query_lens)
    num_rows, num_tokens = len(query_lens), sum(query_lens)
    sample_rows = list(unpack_int32(batch.sample_rows))
    assert len(batch.uids) == 8 * num_rows
    assert len(batch.context_lens) == 4 * num_rows
    assert len(batch.page_tables) == 4 * num_rows * batch.num_pages_per_row
    assert len(batch.token_ids) == len(batch.positions) == 4 * num_tokens
    assert len(batch.slots) == 8 * num_tokens
    assert sample_rows == sorted(set(sample_rows))
    assert sample_rows[: batch.num_decode_rows] == list(range(batch.num_decode_rows))
    assert all(length == 1 for length in query_lens[: batch.num_decode_rows])
    assert min(query_lens) >= 1
    for column, size in (("temperatures", 4), ("top_ps", 4), ("top_ks", 4), ("min_ps", 4), ("seeds", 8)):
        assert len(getattr(batch, column)) == size * len(sample_rows)
    assert len(batch.sample_positions) == 8 * len(sample_rows)
    phase = "decode" if batch.num_decode_rows == num_rows else "mixed" if batch.num_decode_rows else "prefill"
    assert batch.phase == phase


def expected_output(
    prompt: Sequence[int],
    params: SamplingParams,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: Sequence[int] = (),
) -> list[int]:
    """Returns the tokens that an undisturbed request gets, its end token included."""
    values: list[int] = []
    value = START
    for position, token_id in enumerate(prompt):
        value = next_value(value, token_id, position)
        values.append(value)
    temperature = 0.0 if params.is_greedy else params.temperature
    floats = array("f", (temperature, params.top_p, params.min_p))
    columns = (floats[0], floats[1], params.top_k, floats[2], params.seed)
    output: list[int] = []
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    while len(output) < params.max_tokens and len(values) < max_model_len:
        token_id = choose(values, columns, len(values), vocab_size)
        output.append(token_id)
        if token_id in ends:
            break
        value = next_value(value, token_id, len(values))
        values.append(value)
    return output
