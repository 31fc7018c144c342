"""Steps of rows of one token each, for tests that are about some of their columns only."""

from typing import Any

from messages.columns import pack_int32
from messages.ring.axes import fill_columns
from messages.ring.steps import ROW, SAMPLED, TOKEN, Batch


def plain_step(num_rows: int, **changes: Any) -> Batch:
    """Returns a step of greedy decode rows that all sample, with these fields changed."""
    columns = fill_columns(Batch, {ROW: num_rows, TOKEN: num_rows, SAMPLED: num_rows})
    columns["sample_tokens"] = pack_int32(range(num_rows))
    return Batch(**{"step_id": 0, "num_decode_rows": num_rows, "num_pages_per_row": 0, **columns, **changes})
