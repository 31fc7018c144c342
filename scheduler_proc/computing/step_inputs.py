"""The plan of a step as tensors, in one buffer.

Shape legend: T tokens, R rows, B decode rows, C prefill rows, P pages a row, S rows that sample, Q scored tokens,
N tokens that go to the head (S + Q), W words of a plan of attention, L tiles.

A step of fixed shape has room for more rows and tokens than its batch has: the tokens of its decode rows come first and
those of its prefill rows after *all* places for decode rows. What is left over in each part is padding: slot -1 (its K
and V are stored nowhere), no keys, no query tokens, no source.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.decode_work import DecodeLayout, DecodeWork
from kernels.prefill_tiles import TILE_WORDS
from messages.columns import num_int32
from messages.steps import Batch
from scheduler_proc.computing.packed_columns import PackedColumns

Arrays = dict[str, np.ndarray]

PLANS = frozenset({"decode_plan", "prefill_tiles"})
"""The columns that are plans of attention."""


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
    token_sources: Tensor
    """int32 [B]: index of the row's token among those that the step before sampled, -1: `token_ids` has it."""
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
    """int64 [N]: the tokens that go to the head, the last of each row that samples and then the scored ones."""
    all_go_to_head: bool = False
    """`head_tokens` are all tokens, in their order, and this is known without asking the device."""
    decode_work: DecodeWork | None = None
    """Which program computes what, for kernels that are told; `None`: they see for themselves."""
    prefill_tiles: Tensor | None = None
    """int32 [L, 4], the same for prefill rows."""


@dataclass(frozen=True)
class StepShape:
    """The sizes of a step, padding included, and of its plans of attention (`attention_plans.py`), if it has any."""

    num_decode_rows: int
    num_prefill_tokens: int
    num_prefill_rows: int
    num_pages: int
    num_head_tokens: int
    decode_layout: DecodeLayout | None = None
    num_tiles: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_decode_rows + self.num_prefill_tokens

    def columns(self) -> PackedColumns:
        """Returns the layout of the columns of `StepInputs`, and of the plans."""
        tokens, rows, prefills = (self.num_tokens,), (self.num_decode_rows,), (self.num_prefill_rows,)
        plans: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        if self.decode_layout is not None:
            plans["decode_plan"] = (torch.int32, (self.decode_layout.num_words,))
        if self.num_tiles:
            plans["prefill_tiles"] = (torch.int32, (self.num_tiles, TILE_WORDS))
        return PackedColumns(
            {
                "token_ids": (torch.int32, tokens),
                "positions": (torch.int32, tokens),
                "slots": (torch.int64, tokens),
                "token_sources": (torch.int32, rows),
                "decode_page_tables": (torch.int32, (self.num_decode_rows, self.num_pages)),
                "decode_num_keys": (torch.int32, rows),
                "prefill_page_tables": (torch.int32, (self.num_prefill_rows, self.num_pages)),
                "prefill_query_lens": (torch.int32, prefills),
                "prefill_context_lens": (torch.int32, prefills),
                "head_tokens": (torch.int64, (self.num_head_tokens,)),
                **plans,
            }
        )


def shape_of(batch: Batch) -> StepShape:
    """Returns the sizes of `batch` without padding."""
    num_scored = 0 if batch.scored is None else num_int32(batch.scored.token_indices)
    return StepShape(
        num_decode_rows=batch.num_decode_rows,
        num_prefill_tokens=num_int32(batch.token_ids) - batch.num_decode_rows,
        num_prefill_rows=num_int32(batch.query_lens) - batch.num_decode_rows,
        num_pages=batch.num_pages_per_row,
        num_head_tokens=num_int32(batch.sample_rows) + num_scored,
    )


def make_step_inputs(batch: Batch, device: torch.device) -> StepInputs:
    """Returns the columns of `batch` on `device`, not packed: where nothing is copied, that gains nothing."""
    tensors: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in _read_columns(batch).items()}
    return StepInputs(batch.num_decode_rows, all_go_to_head=only_samples(batch), **tensors)


def only_samples(batch: Batch) -> bool:
    """Whether each token of the step is a decode row's, and yields a next token that nothing else is wanted of."""
    num_rows = batch.num_decode_rows
    return num_int32(batch.token_ids) == num_int32(batch.sample_rows) == num_rows and batch.scored is None


def view_step(shape: StepShape, tensors: dict[str, Tensor]) -> StepInputs:
    """Returns the inputs of a step, without plans, whose columns are `tensors`."""
    columns: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if name not in PLANS}
    return StepInputs(shape.num_decode_rows, **columns)


def pack_step(batch: Batch, shape: StepShape, arrays: Arrays) -> None:
    """Writes the columns of `batch` and the padding into `arrays`, the columns of a shape that has room for it."""
    columns, num_decode, places = _read_columns(batch), batch.num_decode_rows, shape.num_decode_rows
    for name, padding in (("token_ids", 0), ("positions", 0), ("slots", -1)):
        _fill(arrays[name][:places], columns[name][:num_decode], padding)
        _fill(arrays[name][places:], columns[name][num_decode:], padding)
    for name, padding in (("token_sources", -1), ("decode_num_keys", 0)):
        _fill(arrays[name], columns[name], padding)
    for name in ("prefill_query_lens", "prefill_context_lens"):
        _fill(arrays[name], columns[name], 0)
    for name in ("decode_page_tables", "prefill_page_tables"):
        _fill_tables(arrays[name], columns[name])
    head_tokens = columns["head_tokens"]
    head_tokens[head_tokens >= num_decode] += places - num_decode
    _fill(arrays["head_tokens"], head_tokens, 0)


def _read_columns(batch: Batch) -> Arrays:
    """Returns the columns of `StepInputs` without padding, which may be written."""
    query_lens, context_lens = _int32(batch.query_lens), _int32(batch.context_lens)
    token_ids, positions = _int32(batch.token_ids), _int32(batch.positions)
    slots, num_decode = np.frombuffer(bytearray(batch.slots), np.int64), batch.num_decode_rows
    assert (query_lens[:num_decode] == 1).all()
    assert len(token_ids) == len(positions) == len(slots) == query_lens.sum()
    tables = _int32(batch.page_tables).reshape(len(query_lens), batch.num_pages_per_row)
    has_sources = bool(batch.token_sources)
    return {
        "token_ids": token_ids,
        "positions": positions,
        "slots": slots,
        "token_sources": _int32(batch.token_sources) if has_sources else np.full(num_decode, -1, np.int32),
        "decode_page_tables": tables[:num_decode],
        "decode_num_keys": context_lens[:num_decode] + np.int32(1),
        "prefill_page_tables": tables[num_decode:],
        "prefill_query_lens": query_lens[num_decode:],
        "prefill_context_lens": context_lens[num_decode:],
        "head_tokens": _find_head_tokens(batch, query_lens),
    }


def _find_head_tokens(batch: Batch, query_lens: np.ndarray) -> np.ndarray:
    """Returns indices (int64) into the tokens of the batch."""
    ends = np.cumsum(query_lens, dtype=np.int64)
    last_tokens = ends[_int32(batch.sample_rows)] - 1
    if batch.scored is None:
        return last_tokens
    scored = _int32(batch.scored.token_indices)
    assert len(scored) == 0 or 0 <= scored.min() <= scored.max() < ends[-1]
    return np.concatenate((last_tokens, scored))


def _int32(column: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(column), np.int32)  # torch takes only memory that it may write


def _fill(column: np.ndarray, values: np.ndarray, padding: int) -> None:
    column[: len(values)] = values
    column[len(values) :] = padding


def _fill_tables(column: np.ndarray, tables: np.ndarray) -> None:
    """A table of the batch may be wider than any request is long; what is cut off is padding."""
    num_rows, width = tables.shape[0], min(tables.shape[1], column.shape[1])
    column[:num_rows, :width] = tables[:, :width]
    column[:num_rows, width:] = -1
    column[num_rows:] = -1
