"""Batches as columns of one buffer, with room for padding.

A step of fixed shape has room for more rows and tokens than its batch has: the tokens of its decode rows come first,
the tokens of its prefill rows after *all* places for decode rows. Unused places in each part are padding: slot -1 (its
K and V are stored nowhere), no keys, no query tokens, no source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.arguments.rows import PrefillRows
from kernels.plans.decode_work import PlanLayout
from kernels.plans.prefill_tiles import TILE_WORDS
from messages.columns import num_int32, pack_int32, unpack_int32
from messages.ring.axes import fill_columns
from messages.ring.steps import Batch
from scheduler_proc.computing.step.features.registry import FEATURES
from scheduler_proc.computing.step.inputs import NO_FEATURES, InputColumn, StepInputs
from scheduler_proc.computing.step.packed_columns import NUMPY_DTYPES, PackedColumns

Arrays = dict[str, np.ndarray]


def _read_sources(batch: Batch) -> bytes:
    return batch.future_token_indices or pack_int32([-1]) * batch.num_decode_rows


def _count_keys(batch: Batch) -> bytes:
    return pack_int32([context_len + 1 for context_len in unpack_int32(batch.context_lens)])


def _find_head_tokens(batch: Batch) -> bytes:
    """Returns indices (int64) into the tokens of the batch: those that sample, then `hidden_tokens`."""
    tokens = np.frombuffer(batch.sample_tokens + batch.hidden_tokens, np.int32)
    assert len(tokens) == 0 or 0 <= tokens.min() <= tokens.max() < batch.num_tokens
    return tokens.astype(np.int64).tobytes()


COMMON_COLUMNS: Mapping[str, InputColumn] = {
    "token_ids": InputColumn(torch.int32, "token", 0, attrgetter("token_ids")),
    "positions": InputColumn(torch.int32, "token", 0, lambda batch: batch.rope_positions or batch.positions),
    "slots": InputColumn(torch.int64, "token", -1, attrgetter("slots")),
    "future_token_indices": InputColumn(torch.int32, "decode row", -1, _read_sources),
    "decode_page_tables": InputColumn(torch.int32, "decode row", -1, attrgetter("page_tables"), is_table=True),
    "decode_num_keys": InputColumn(torch.int32, "decode row", 0, _count_keys),
    "prefill_page_tables": InputColumn(torch.int32, "prefill row", -1, attrgetter("page_tables"), is_table=True),
    "prefill_query_lens": InputColumn(torch.int32, "prefill row", 0, attrgetter("query_lens")),
    "prefill_context_lens": InputColumn(torch.int32, "prefill row", 0, attrgetter("context_lens")),
    "head_tokens": InputColumn(torch.int64, "head token", 0, _find_head_tokens),
}
"""The columns that every step has. A column is read and written by its entry here or of a feature, on every device."""

NO_ROWS = Batch(step_id=0, num_decode_rows=0, num_pages_per_row=1, **fill_columns(Batch, {}))
"""A step that is all padding: a graph depends only on the step's shape."""


@dataclass(frozen=True)
class StepShape:
    """The sizes of a step, including padding, and of the plan of its attention, if it has one."""

    num_decode_rows: int
    num_prefill_tokens: int
    num_prefill_rows: int
    num_pages: int
    num_head_tokens: int
    decode_layouts: tuple[PlanLayout, ...] = ()
    """The layout of each plan of decode attention; the layers of a kind share one."""
    num_tiles: tuple[int, ...] = ()
    """The size of each plan for prefill rows; all layers whose tiles have as many tokens share one."""
    features: frozenset[str] = NO_FEATURES
    """The names of the features whose columns the step has."""

    @property
    def num_tokens(self) -> int:
        return self.num_decode_rows + self.num_prefill_tokens

    def places(self, column: InputColumn) -> tuple[int, ...]:
        """Returns the shape of a column."""
        places = {
            "token": self.num_tokens,
            "decode row": self.num_decode_rows,
            "prefill row": self.num_prefill_rows,
            "head token": self.num_head_tokens,
        }[column.axis]
        return (places, self.num_pages) if column.is_table else (places,)

    def columns(self) -> PackedColumns:
        """Returns the layout of the columns of `StepInputs`, and of the plans."""
        layout = {name: (column.dtype, self.places(column)) for name, column in columns_of(self.features).items()}
        for index, plan in enumerate(self.decode_layouts):
            layout[f"decode_plan_{index}"] = (torch.int32, (plan.num_words,))
        for index, num_tiles in enumerate(self.num_tiles):
            layout[f"prefill_tiles_{index}"] = (torch.int32, (num_tiles, TILE_WORDS))
        return PackedColumns(layout)


@cache
def columns_of(features: frozenset[str]) -> Mapping[str, InputColumn]:
    """Returns all columns of steps that have these features."""
    own = [feature.columns for feature in FEATURES if feature.name in features]
    return {name: column for columns in (COMMON_COLUMNS, *own) for name, column in columns.items()}


def shape_of(batch: Batch) -> StepShape:
    """Returns the sizes of `batch` without padding."""
    return StepShape(
        num_decode_rows=batch.num_decode_rows,
        num_prefill_tokens=batch.num_tokens - batch.num_decode_rows,
        num_prefill_rows=batch.num_rows - batch.num_decode_rows,
        num_pages=batch.num_pages_per_row,
        num_head_tokens=batch.num_sampled + num_int32(batch.hidden_tokens),
        features=frozenset(feature.name for feature in FEATURES if feature.is_in(batch)),
    )


def make_step_inputs(batch: Batch, device: torch.device) -> StepInputs:
    """Returns the columns of `batch` on `device`, unpacked: packing only helps if they are copied."""
    shape = shape_of(batch)
    columns = _read_columns(batch, shape)
    tensors: dict[str, Tensor] = {name: torch.from_numpy(array).to(device) for name, array in columns.items()}
    num_last = _count_last_tokens(batch.num_decode_rows, columns)
    head_rows = None
    if num_last is not None:
        num_last = torch.from_numpy(num_last).to(device)
        context_lens = tensors["prefill_context_lens"] + tensors["prefill_query_lens"] - num_last
        head_rows = PrefillRows(tensors["prefill_page_tables"], num_last, context_lens)
    all_go_to_head = np.array_equal(columns["head_tokens"], np.arange(batch.num_tokens))
    return replace(view_step(shape, tensors), all_go_to_head=all_go_to_head, head_rows=head_rows)


def _count_last_tokens(num_decode: int, columns: Arrays) -> np.ndarray | None:
    """Returns how many tokens of each prefill row go to the head (int32).

    `None` unless `head_tokens` are all decode rows and last tokens of prefill rows, in the order of all tokens.
    """
    ends, head_tokens = num_decode + columns["prefill_query_lens"].cumsum(), columns["head_tokens"]
    rows = ends.searchsorted(head_tokens[num_decode:], "right")
    num_last = np.bincount(rows, minlength=len(ends))[: len(ends)].astype(np.int32)
    expected = [np.arange(num_decode), *(np.arange(end - num, end) for end, num in zip(ends, num_last, strict=True))]
    return num_last if np.array_equal(np.concatenate(expected), head_tokens) else None


def only_samples(batch: Batch) -> bool:
    """True if each token of the step yields a next token, and nothing else is requested."""
    return num_int32(batch.token_ids) == num_int32(batch.sample_tokens) and not batch.hidden_tokens


def view_step(shape: StepShape, tensors: Mapping[str, Tensor]) -> StepInputs:
    """Returns the inputs of a step, without plans, whose columns are among `tensors`."""
    columns: dict[str, Any] = {name: tensors[name] for name in COMMON_COLUMNS}
    found = [feature for feature in FEATURES if feature.name in shape.features]
    features = {feature: {name: tensors[name] for name in feature.columns} for feature in found}
    # Each decode row samples, so without other rows and hidden tokens all go to the head.
    all_go_to_head = shape.num_tokens == shape.num_decode_rows == shape.num_head_tokens
    return StepInputs(shape.num_decode_rows, **columns, all_go_to_head=all_go_to_head, features=features)


def pack_step(batch: Batch, shape: StepShape, arrays: Arrays) -> None:
    """Writes the columns of `batch` and the padding into `arrays`, the columns of a shape that has room for it."""
    columns = _read_columns(batch, shape)
    num_decode, places = batch.num_decode_rows, shape.num_decode_rows
    head_tokens = columns["head_tokens"]
    head_tokens[head_tokens >= num_decode] += places - num_decode
    for name, column in columns_of(shape.features).items():
        if column.is_table:
            _fill_tables(arrays[name], columns[name], column.padding)
        elif column.axis == "token":
            _fill(arrays[name][:places], columns[name][:num_decode], column.padding)
            _fill(arrays[name][places:], columns[name][num_decode:], column.padding)
        else:
            _fill(arrays[name], columns[name], column.padding)


def _read_columns(batch: Batch, shape: StepShape) -> Arrays:
    """Returns the columns of `StepInputs` without padding, which may be written."""
    columns = {name: _read_column(column, batch) for name, column in columns_of(shape.features).items()}
    num_tokens = batch.num_decode_rows + columns["prefill_query_lens"].sum()
    assert len(columns["token_ids"]) == len(columns["positions"]) == len(columns["slots"]) == num_tokens
    return columns


def _read_column(column: InputColumn, batch: Batch) -> np.ndarray:
    data, num_decode = column.read(batch), batch.num_decode_rows
    entry_bytes = column.dtype.itemsize * (batch.num_pages_per_row if column.is_table else 1)
    if column.axis == "decode row":
        data = data[: num_decode * entry_bytes]
    elif column.axis == "prefill row":
        data = data[num_decode * entry_bytes :]
    array = np.frombuffer(bytearray(data), NUMPY_DTYPES[column.dtype])  # torch takes only memory that it may write
    return array.reshape(-1, batch.num_pages_per_row) if column.is_table else array


def _fill(column: np.ndarray, values: np.ndarray, padding: int) -> None:
    column[: len(values)] = values
    column[len(values) :] = padding


def _fill_tables(column: np.ndarray, tables: np.ndarray, padding: int) -> None:
    """Copies page tables. A table of the batch may be wider than any request; only padding is cut off."""
    num_rows, width = tables.shape[0], min(tables.shape[1], column.shape[1])
    column[:num_rows, :width] = tables[:, :width]
    column[:num_rows, width:] = padding
    column[num_rows:] = padding
