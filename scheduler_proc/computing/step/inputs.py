"""The plan of a step as tensors, in one buffer.

Shape legend: T tokens, R rows, B decode rows, C prefill rows, P pages a row, S rows that sample, Q hidden
tokens, N tokens that go to the head (S + Q), W words of a plan of attention, L tiles.

A step of fixed shape has room for more rows and tokens than its batch has: the tokens of its decode rows come first,
the tokens of its prefill rows after *all* places for decode rows. Unused places in each part are padding: slot -1 (its
K and V are stored nowhere), no keys, no query tokens, no source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.arguments.lora_slots import LoraSlots, TokenAdapters
from kernels.arguments.rows import PrefillRows
from kernels.arguments.state_rows import StateRows
from kernels.plans.decode_work import DecodeLayout, DecodeWork
from kernels.plans.prefill_tiles import TILE_WORDS
from messages.columns import num_int32, pack_int32, unpack_int32
from messages.ring.axes import fill_columns
from messages.ring.steps import Batch
from scheduler_proc.computing.step.packed_columns import NUMPY_DTYPES, PackedColumns

Arrays = dict[str, np.ndarray]

Axis = Literal["token", "decode row", "prefill row", "head token"]

AttentionKind = tuple[int, int, int, int | None]
"""`AttentionDescription.kind`, of some layers."""


def _read_sources(batch: Batch) -> bytes:
    return batch.future_token_indices or pack_int32([-1]) * batch.num_decode_rows


def read_state_sources(batch: Batch) -> bytes:
    return batch.state_sources or pack_int32([-1]) * batch.num_rows


def _read_adapter_slots(batch: Batch) -> bytes:
    """Returns the slot of each token, none if no row has an adapter."""
    slots = unpack_int32(batch.adapter_slots)
    if len(slots) == batch.num_tokens:
        return batch.adapter_slots
    counts = unpack_int32(batch.query_lens)
    return b"".join([pack_int32([slot]) * count for slot, count in zip(slots, counts, strict=False)])


def _count_keys(batch: Batch) -> bytes:
    return pack_int32([context_len + 1 for context_len in unpack_int32(batch.context_lens)])


def _find_head_tokens(batch: Batch) -> bytes:
    """Returns indices (int64) into the tokens of the batch: those that sample, then `hidden_tokens`."""
    tokens = np.frombuffer(batch.sample_tokens + batch.hidden_tokens, np.int32)
    assert len(tokens) == 0 or 0 <= tokens.min() <= tokens.max() < batch.num_tokens
    return tokens.astype(np.int64).tobytes()


class InputColumn(NamedTuple):
    """A column of `StepInputs`: what it has an entry for, a whole page table if `is_table`.

    Columns with `only_with` exist if windowed layers have pages of their own, if layers have recurrent states, if
    hidden states are drafted from, if rows have adapters, or if tokens have types.

    `read` returns the entries of a batch without padding; those of decode rows come before those of prefill rows.
    """

    dtype: torch.dtype
    axis: Axis
    padding: int
    """The value of places that no entry of the batch takes."""
    read: Callable[[Batch], bytes]
    is_table: bool = False
    only_with: Literal["windows", "states", "hidden", "adapters", "types"] | None = None


INPUT_COLUMNS: Mapping[str, InputColumn] = {
    "token_ids": InputColumn(torch.int32, "token", 0, attrgetter("token_ids")),
    "positions": InputColumn(torch.int32, "token", 0, attrgetter("positions")),
    "slots": InputColumn(torch.int64, "token", -1, attrgetter("slots")),
    "future_token_indices": InputColumn(torch.int32, "decode row", -1, _read_sources),
    "decode_page_tables": InputColumn(torch.int32, "decode row", -1, attrgetter("page_tables"), is_table=True),
    "decode_num_keys": InputColumn(torch.int32, "decode row", 0, _count_keys),
    "prefill_page_tables": InputColumn(torch.int32, "prefill row", -1, attrgetter("page_tables"), is_table=True),
    "prefill_query_lens": InputColumn(torch.int32, "prefill row", 0, attrgetter("query_lens")),
    "prefill_context_lens": InputColumn(torch.int32, "prefill row", 0, attrgetter("context_lens")),
    "head_tokens": InputColumn(torch.int64, "head token", 0, _find_head_tokens),
    "window_slots": InputColumn(torch.int64, "token", -1, attrgetter("window_slots"), only_with="windows"),
    "window_decode_tables": InputColumn(
        torch.int32, "decode row", -1, attrgetter("window_page_tables"), is_table=True, only_with="windows"
    ),
    "window_prefill_tables": InputColumn(
        torch.int32, "prefill row", -1, attrgetter("window_page_tables"), is_table=True, only_with="windows"
    ),
    "decode_state_sources": InputColumn(torch.int32, "decode row", -1, read_state_sources, only_with="states"),
    "prefill_state_sources": InputColumn(torch.int32, "prefill row", -1, read_state_sources, only_with="states"),
    "state_slots": InputColumn(torch.int32, "token", -1, attrgetter("state_slots"), only_with="states"),
    "hidden_slots": InputColumn(torch.int64, "token", -1, attrgetter("hidden_slots"), only_with="hidden"),
    "adapter_slots": InputColumn(torch.int32, "token", -1, _read_adapter_slots, only_with="adapters"),
    "token_types": InputColumn(torch.int32, "token", 0, attrgetter("token_types"), only_with="types"),
}
"""All columns. A column is read and written by its entry here, on every device."""

NO_ROWS = Batch(step_id=0, num_decode_rows=0, num_pages_per_row=1, **fill_columns(Batch, {}))
"""A step that is all padding: a graph depends only on the step's shape."""


@dataclass(frozen=True)
class StepInputs:
    """The first B tokens are those of the decode rows; the tokens of the prefill rows follow one after another."""

    num_decode_rows: int
    token_ids: Tensor
    """int32 [T]"""
    positions: Tensor
    """int32 [T]"""
    slots: Tensor
    """int64 [T]"""
    future_token_indices: Tensor
    """int32 [B]: index of the row's token among those sampled by the previous step, -1: `token_ids` has it."""
    decode_page_tables: Tensor
    """int32 [B, P], padded with -1."""
    decode_num_keys: Tensor
    """int32 [B]: tokens that the row attends to, its new one included."""
    prefill_page_tables: Tensor
    """int32 [C, P], padded with -1."""
    prefill_query_lens: Tensor
    """int32 [C]"""
    prefill_context_lens: Tensor
    """int32 [C]"""
    head_tokens: Tensor
    """int64 [N]: the tokens that go to the head: the last token of each sampling row, then the tokens before prompt
    tokens with logprobs."""
    all_go_to_head: bool = False
    """`head_tokens` are all tokens, in order; known without waiting for the device."""
    decode_works: Mapping[AttentionKind, DecodeWork] | None = None
    """The plans of decode attention: which program computes what; `None` for kernels without a plan."""
    prefill_tiles: Mapping[AttentionKind, Tensor] | None = None
    """int32 [L, 4]: the plans for prefill rows."""
    head_rows: PrefillRows | None = None
    """The prefill rows with only their tokens among `head_tokens`, which are then in the order of all tokens and begin
    with those of the decode rows. `None` if that is not known."""
    window_slots: Tensor | None = None
    """int64 [T]: `slots` for windowed layers. `None` if they have no pages of their own, as are their tables."""
    window_decode_tables: Tensor | None = None
    window_prefill_tables: Tensor | None = None
    decode_state_sources: Tensor | None = None
    """int32 [B]: see `StateRows`. `None` if no layer has a recurrent state, as are the next two."""
    prefill_state_sources: Tensor | None = None
    """int32 [C]"""
    state_slots: Tensor | None = None
    """int32 [T]"""
    hidden_slots: Tensor | None = None
    """int64 [T]: see `Batch.hidden_slots`; `None` if it is empty."""
    token_types: Tensor | None = None
    """int32 [T]; `None` if all tokens are of type 0."""
    adapter_slots: Tensor | None = None
    """int32 [T]: the slot with the token's adapter, -1: none. `None` if no row has one."""

    @cached_property
    def state_rows(self) -> StateRows:
        """The recurrent states that the rows read and store. Only for a step of all tokens."""
        sources, prefill_sources, slots = self.decode_state_sources, self.prefill_state_sources, self.state_slots
        assert sources is not None
        assert prefill_sources is not None
        assert slots is not None
        return StateRows(self.num_decode_rows, sources, prefill_sources, self.prefill_query_lens, slots)

    @cached_property
    def windowed(self) -> "StepInputs":
        """The step as windowed layers see it: with the slots and page tables of their own pages, if they have any."""
        slots, decode_tables, tables = self.window_slots, self.window_decode_tables, self.window_prefill_tables
        if slots is None or decode_tables is None or tables is None:
            return self
        head_rows = None if self.head_rows is None else replace(self.head_rows, page_tables=tables)
        changes = {"slots": slots, "decode_page_tables": decode_tables, "prefill_page_tables": tables}
        return replace(self, head_rows=head_rows, **changes)

    def head_slots(self, num_sampled: int) -> tuple[Tensor | None, Tensor | None]:
        """Returns the adapters' slots of the sampled ones among `head_tokens` and of the others, if rows have any."""
        if self.adapter_slots is None:
            return None, None
        slots_N = self.adapter_slots[self.head_tokens]
        return slots_N[:num_sampled], slots_N[num_sampled:]

    def at_head(self) -> "StepInputs":
        """Returns the step with only the tokens that go to the head; `head_rows` must be known."""
        assert self.head_rows is not None
        names = ("token_ids", "positions", "slots", "window_slots", "adapter_slots")
        columns = {name: column[self.head_tokens] for name in names if (column := getattr(self, name)) is not None}
        lens = {"prefill_query_lens": self.head_rows.query_lens, "prefill_context_lens": self.head_rows.context_lens}
        return replace(self, all_go_to_head=True, head_rows=None, **columns, **lens)


@dataclass(frozen=True)
class StepRows:
    """The tokens that a linear computes: those with these indices (integers), or all tokens of the step.

    The step's columns are in the same memory in all steps that a capture serves. `lora`: the slots of each linear that
    adapters may update, by its name; `None` if no row has an adapter.
    """

    step: StepInputs
    tokens: Tensor | None = None
    lora: Mapping[str, LoraSlots] | None = None

    @cached_property
    def adapters(self) -> TokenAdapters:
        """The adapters of the tokens; some row must have one."""
        assert self.step.adapter_slots is not None
        assert self.lora is not None
        num_slots = len(next(iter(self.lora.values())).ranks)
        return TokenAdapters(self.select(self.step.adapter_slots), num_slots)

    def select(self, column_T: Tensor) -> Tensor:
        """Returns the entries of a column of the step, one for each token."""
        return column_T if self.tokens is None else column_T[self.tokens]

    def narrowed(self, indices: Tensor) -> "StepRows":
        """Returns the rows with these indices."""
        return replace(self, tokens=indices if self.tokens is None else self.tokens[indices])

    def at_head(self) -> "StepRows":
        """Returns all rows of the step with only the tokens that go to the head."""
        return replace(self, step=self.step.at_head(), tokens=None)


@dataclass(frozen=True)
class StepShape:
    """The sizes of a step, including padding, and of the plan of its attention, if it has one."""

    num_decode_rows: int
    num_prefill_tokens: int
    num_prefill_rows: int
    num_pages: int
    num_head_tokens: int
    decode_layouts: tuple[DecodeLayout, ...] = ()
    """The layout of each plan of decode attention; the layers of a kind share one."""
    num_tiles: tuple[int, ...] = ()
    """The size of each plan for prefill rows; all layers whose tiles have as many tokens share one."""
    has_windows: bool = False
    """Windowed layers have pages of their own."""
    has_states: bool = False
    """Layers have recurrent states."""
    has_hidden_slots: bool = False
    """The step is one of a head of multi-token prediction."""
    has_adapters: bool = False
    """Rows have adapters."""
    has_types: bool = False
    """Some tokens have a type other than 0."""

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
        layout = {name: (column.dtype, self.places(column)) for name, column in _columns_of(self).items()}
        for index, plan in enumerate(self.decode_layouts):
            layout[f"decode_plan_{index}"] = (torch.int32, (plan.num_words,))
        for index, num_tiles in enumerate(self.num_tiles):
            layout[f"prefill_tiles_{index}"] = (torch.int32, (num_tiles, TILE_WORDS))
        return PackedColumns(layout)


def _columns_of(shape: StepShape) -> Mapping[str, InputColumn]:
    exists = {None: True, "windows": shape.has_windows, "states": shape.has_states}
    exists |= {"hidden": shape.has_hidden_slots, "adapters": shape.has_adapters, "types": shape.has_types}
    return {name: column for name, column in INPUT_COLUMNS.items() if exists[column.only_with]}


def shape_of(batch: Batch) -> StepShape:
    """Returns the sizes of `batch` without padding."""
    return StepShape(
        num_decode_rows=batch.num_decode_rows,
        num_prefill_tokens=batch.num_tokens - batch.num_decode_rows,
        num_prefill_rows=batch.num_rows - batch.num_decode_rows,
        num_pages=batch.num_pages_per_row,
        num_head_tokens=batch.num_sampled + num_int32(batch.hidden_tokens),
        has_windows=bool(batch.window_slots),
        has_states=bool(batch.state_slots),
        has_hidden_slots=bool(batch.hidden_slots),
        has_adapters=bool(batch.adapter_slots),
        has_types=bool(batch.token_types),
    )


def make_step_inputs(batch: Batch, device: torch.device) -> StepInputs:
    """Returns the columns of `batch` on `device`, unpacked: packing only helps if they are copied."""
    columns = _read_columns(batch, shape_of(batch))
    tensors: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in columns.items()}
    num_last = _count_last_tokens(batch.num_decode_rows, columns)
    head_rows = None
    if num_last is not None:
        num_last = torch.from_numpy(num_last).to(device)
        context_lens = tensors["prefill_context_lens"] + tensors["prefill_query_lens"] - num_last
        head_rows = PrefillRows(tensors["prefill_page_tables"], num_last, context_lens)
    all_go_to_head = np.array_equal(columns["head_tokens"], np.arange(batch.num_tokens))
    return StepInputs(batch.num_decode_rows, all_go_to_head=all_go_to_head, head_rows=head_rows, **tensors)


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


def view_step(shape: StepShape, tensors: dict[str, Tensor]) -> StepInputs:
    """Returns the inputs of a step, without plans, whose columns are `tensors`."""
    columns: dict[str, Any] = {name: tensors[name] for name in _columns_of(shape)}
    # Each decode row samples, so without other rows and hidden tokens all go to the head.
    all_go_to_head = shape.num_tokens == shape.num_decode_rows == shape.num_head_tokens
    return StepInputs(shape.num_decode_rows, all_go_to_head=all_go_to_head, **columns)


def pack_step(batch: Batch, shape: StepShape, arrays: Arrays) -> None:
    """Writes the columns of `batch` and the padding into `arrays`, the columns of a shape that has room for it."""
    columns = _read_columns(batch, shape)
    num_decode, places = batch.num_decode_rows, shape.num_decode_rows
    head_tokens = columns["head_tokens"]
    head_tokens[head_tokens >= num_decode] += places - num_decode
    for name, column in _columns_of(shape).items():
        if column.is_table:
            _fill_tables(arrays[name], columns[name], column.padding)
        elif column.axis == "token":
            _fill(arrays[name][:places], columns[name][:num_decode], column.padding)
            _fill(arrays[name][places:], columns[name][num_decode:], column.padding)
        else:
            _fill(arrays[name], columns[name], column.padding)


def _read_columns(batch: Batch, shape: StepShape) -> Arrays:
    """Returns the columns of `StepInputs` without padding, which may be written."""
    columns = {name: _read_column(column, batch) for name, column in _columns_of(shape).items()}
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
