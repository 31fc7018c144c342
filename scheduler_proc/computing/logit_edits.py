"""Changes logits as a step's `LogitEdits` say: allowed tokens, then biases, then penalties.

Shape legend: N rows with a copy of their logits, V vocabulary. An entry is one token of one row; the work is in
proportion to the entries, but for rows with allowed tokens, which are written once from end to end.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.add_biases import add_biases
from kernels.allow_tokens import allow_tokens
from kernels.penalize_occurrence import penalize_occurrence
from kernels.penalize_repetition import penalize_repetition
from messages.steps import LogitEdits


def find_edited(edits: LogitEdits | None, num_rows: int) -> np.ndarray:
    """Returns which of the rows that sample are named in `edits` (bool)."""
    is_edited = np.zeros(num_rows, dtype=bool)
    if edits is not None:
        for column in (edits.allowed_rows, edits.bias_rows, edits.penalty_rows):
            is_edited[_int32(column)] = True
    return is_edited


def edit_logits(logits_NV: Tensor, edits: LogitEdits, places: np.ndarray) -> None:
    """Edits the float32 logits in place; `places[row]` is where the copy of a row that samples is (int64)."""
    if edits.allowed_rows:
        _allow(logits_NV, edits, places)
    if edits.bias_rows:
        rows, ids = places[_int32(edits.bias_rows)], _ids(edits.bias_ids, logits_NV)
        values = np.frombuffer(edits.bias_values, np.float32)
        add_biases(logits_NV, *_to_device(logits_NV, rows, ids, values))
    if edits.penalty_rows:
        _penalize(logits_NV, edits, places)


def _allow(logits_NV: Tensor, edits: LogitEdits, places: np.ndarray) -> None:
    rows, ids = places[_int32(edits.allowed_rows)], _ids(edits.allowed_ids, logits_NV)
    entry_rows = np.repeat(rows, _int32(edits.num_allowed))
    allow_tokens(logits_NV, *_to_device(logits_NV, rows, entry_rows, ids))


def _penalize(logits_NV: Tensor, edits: LogitEdits, places: np.ndarray) -> None:
    """Of the history only the entries that a penalty reads go to the device."""
    num_history, ids = _int32(edits.num_history), _ids(edits.history_ids, logits_NV)
    rows = places[_int32(edits.penalty_rows)]
    assert len(rows) == len(num_history)
    owners = np.repeat(np.arange(len(rows)), num_history)
    assert len(owners) == len(ids)
    repetition, frequency, presence = (
        np.frombuffer(column, np.float32)
        for column in (edits.repetition_penalties, edits.frequency_penalties, edits.presence_penalties)
    )
    entries = np.flatnonzero((repetition != 1)[owners])
    if len(entries):
        owned = owners[entries]
        penalize_repetition(logits_NV, *_to_device(logits_NV, rows[owned], ids[entries], repetition[owned]))
    first_outputs = np.cumsum(num_history, dtype=np.int64) - num_history + _int32(edits.num_history_prompt)
    is_counted = ((frequency != 0) | (presence != 0))[owners] & (np.arange(len(ids)) >= first_outputs[owners])
    entries = np.flatnonzero(is_counted)
    if len(entries):
        owned = owners[entries]
        columns = rows[owned], ids[entries], frequency[owned], presence[owned]
        penalize_occurrence(logits_NV, *_to_device(logits_NV, *columns))


def _int32(column: bytes) -> np.ndarray:
    return np.frombuffer(column, np.int32)


def _ids(column: bytes, logits_NV: Tensor) -> np.ndarray:
    """Returns token ids; one outside of the vocabulary would change another row's logits."""
    ids = _int32(column)
    assert len(ids) == 0 or 0 <= ids.min() <= ids.max() < logits_NV.shape[1], "a token id outside of the vocabulary"
    return ids


def _to_device(like: Tensor, *columns: np.ndarray) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(column.copy()).to(like.device) for column in columns)
