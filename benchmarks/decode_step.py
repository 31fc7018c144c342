"""A decode step of a known shape: its plan, and what it must at least move and compute."""

from benchmarks.model_bytes import WEIGHT_BITS, kv_bytes, read_shape, weight_bytes
from benchmarks.offline_workload import TEMPERATURE
from messages.columns import pack_float32, pack_int32, pack_int64
from messages.ring.axes import fill_columns
from messages.ring.steps import ROW, SAMPLED, TOKEN, Batch

PAGE_SIZE = 16
ITEMSIZE = 2
"""Bytes of a bfloat16."""


def plan_decode(num_rows: int, context: int) -> Batch:
    """Returns a step of one token in each row, every row with pages of its own, as the offline benchmark samples."""
    pages_a_row = -(-(context + 1) // PAGE_SIZE)
    last_slots = [(row * pages_a_row) * PAGE_SIZE + context for row in range(num_rows)]
    columns = fill_columns(
        Batch,
        {ROW: num_rows, TOKEN: num_rows, SAMPLED: num_rows},
        uids=pack_int64(range(num_rows)),
        context_lens=pack_int32([context] * num_rows),
        token_ids=pack_int32(range(num_rows)),
        positions=pack_int32([context] * num_rows),
        slots=pack_int64(last_slots),
        page_tables=pack_int32(range(num_rows * pages_a_row)),
        sample_tokens=pack_int32(range(num_rows)),
        temperatures=pack_float32([TEMPERATURE] * num_rows),
        seeds=pack_int64(range(num_rows)),
        sample_positions=pack_int64([context + 1] * num_rows),
    )
    return Batch(step_id=0, num_decode_rows=num_rows, num_pages_per_row=pages_a_row, **columns)


def step_bytes(shape: dict[str, object], num_rows: int, num_keys: int, weight_format: str = "bfloat16") -> float:
    """Returns what a step must at least read: the weights, and the K and V of every row, in bfloat16."""
    model = read_shape(shape, num_keys)
    return weight_bytes(model, 1) * WEIGHT_BITS[weight_format] / 8 + num_rows * num_keys * kv_bytes(model, ITEMSIZE)


def step_flop(shape: dict[str, object], num_rows: int, num_keys: int) -> int:
    """Returns the operations of a decode step: two for each weight and row, and attention's two products."""
    model = read_shape(shape, num_keys)
    attention = 4 * sum(layer.attention.query_size for layer in model.layers) * num_keys
    return num_rows * (2 * weight_bytes(model, 1) + attention)
