"""The plan of a step as tensors.

Shape legend: T tokens, R rows, B decode rows, C prefill rows (R = B + C), P pages a row, S rows that sample,
Q scored tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from messages.steps import Batch


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
    """int64 [S + Q]: the tokens that go to the head, the last of each row that samples and then the scored ones."""


def make_step_inputs(batch: Batch, device: torch.device) -> StepInputs:
    """Returns the columns of `batch` on `device`."""
    query_lens, context_lens = np.frombuffer(batch.query_lens, np.int32), np.frombuffer(batch.context_lens, np.int32)
    num_rows, num_decode = len(query_lens), batch.num_decode_rows
    page_tables = np.frombuffer(batch.page_tables, np.int32).reshape(num_rows, batch.num_pages_per_row)
    ends = np.cumsum(query_lens, dtype=np.int64)
    inputs = StepInputs(
        num_decode_rows=num_decode,
        token_ids=_column(batch.token_ids, np.int32, device),
        positions=_column(batch.positions, np.int32, device),
        slots=_column(batch.slots, np.int64, device),
        decode_page_tables=_to_device(page_tables[:num_decode], device),
        decode_num_keys=_to_device(context_lens[:num_decode] + np.int32(1), device),
        prefill_page_tables=_to_device(page_tables[num_decode:], device),
        prefill_query_lens=_to_device(query_lens[num_decode:], device),
        prefill_context_lens=_to_device(context_lens[num_decode:], device),
        head_tokens=_to_device(_find_head_tokens(batch, ends), device),
    )
    assert (query_lens[:num_decode] == 1).all()
    assert len(inputs.token_ids) == len(inputs.positions) == len(inputs.slots) == (ends[-1] if num_rows else 0)
    return inputs


def _find_head_tokens(batch: Batch, ends: np.ndarray) -> np.ndarray:
    last_tokens = ends[np.frombuffer(batch.sample_rows, np.int32)] - 1
    if batch.scored is None:
        return last_tokens
    scored = np.frombuffer(batch.scored.token_indices, np.int32)
    assert len(scored) == 0 or 0 <= scored.min() <= scored.max() < ends[-1]
    return np.concatenate((last_tokens, scored))


def _column(data: bytes, dtype: type[np.generic], device: torch.device) -> Tensor:
    """Returns a column of a message as a tensor of its own."""
    return _to_device(np.frombuffer(data, dtype), device)


def _to_device(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.copy()).to(device)
