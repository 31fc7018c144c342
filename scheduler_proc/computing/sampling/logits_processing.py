"""Applies a step's `LogitsProcessing` to logits: allowed tokens, then bitmasks, then biases, then penalties.

Shape legend: N rows with a copy of their logits, V vocabulary. An entry is one token of one row. The work is
proportional to the entries, except that rows with allowed tokens or a bitmask are written once from end to end.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from kernels.operations.add_biases import add_biases
from kernels.operations.allow_tokens import allow_tokens
from kernels.operations.apply_bitmask import apply_bitmask
from kernels.operations.penalize_occurrence import penalize_occurrence
from kernels.operations.penalize_repetition import penalize_repetition
from kernels.operations.take_tokens import take_tokens
from messages.ring.steps import LogitsProcessing


def find_processed(processing: LogitsProcessing | None, num_rows: int) -> np.ndarray:
    """Returns the rows that sample and are named in `processing` (bool)."""
    is_processed = np.zeros(num_rows, dtype=bool)
    if processing is not None:
        for column in (processing.allowed_rows, processing.bitmask_rows, processing.bias_rows, processing.penalty_rows):
            is_processed[_int32(column)] = True
    return is_processed


def expand_logits_processing(
    processing: LogitsProcessing, places: np.ndarray, sources: np.ndarray, vocab_size: int
) -> dict[str, np.ndarray]:
    """Returns the columns for `process_logits`; `places[row]` is the index of a sampling row's copy (int64).

    `sources[row]` is the index of the row's last token among the tokens sampled by the previous step (int32); -1: the
    history has it.
    """
    columns: dict[str, np.ndarray] = {}
    if processing.allowed_rows:
        rows = places[_int32(processing.allowed_rows)]
        columns["allowed_rows"] = rows
        columns["allowed_entry_rows"] = np.repeat(rows, _int32(processing.num_allowed))
        columns["allowed_ids"] = _ids(processing.allowed_ids, vocab_size)
    if processing.bitmask_rows:
        rows = places[_int32(processing.bitmask_rows)]
        columns["bitmask_rows"] = rows
        columns["bitmasks"] = _int32(processing.bitmasks).reshape(len(rows), -(-vocab_size // 32))
    if processing.bias_rows:
        columns["bias_rows"] = places[_int32(processing.bias_rows)]
        columns["bias_ids"] = _ids(processing.bias_ids, vocab_size)
        columns["bias_values"] = np.frombuffer(processing.bias_values, np.float32)
    if processing.penalty_rows:
        columns |= _expand_penalties(processing, places, sources, vocab_size)
    return columns


def fill_histories(columns: Mapping[str, Tensor], last_tokens_S: Tensor) -> None:
    """Fills in the last tokens that histories lack, from the previous step, in place."""
    for name in ("repetition", "occurrence"):
        if f"{name}_sources" in columns:
            take_tokens(columns[f"{name}_ids"], columns[f"{name}_sources"], last_tokens_S)


def process_logits(logits_NV: Tensor, columns: Mapping[str, Tensor]) -> None:
    """Edits the float32 logits in place, by those columns that are present."""
    if "allowed_rows" in columns:
        allow_tokens(logits_NV, columns["allowed_rows"], columns["allowed_entry_rows"], columns["allowed_ids"])
    if "bitmask_rows" in columns:
        apply_bitmask(logits_NV, columns["bitmask_rows"], columns["bitmasks"])
    if "bias_rows" in columns:
        add_biases(logits_NV, columns["bias_rows"], columns["bias_ids"], columns["bias_values"])
    if "repetition_rows" in columns:
        entries = columns["repetition_rows"], columns["repetition_ids"]
        penalize_repetition(logits_NV, *entries, columns["repetition_penalties"])
    if "occurrence_rows" in columns:
        entries = columns["occurrence_rows"], columns["occurrence_ids"]
        penalize_occurrence(logits_NV, *entries, columns["frequency_penalties"], columns["presence_penalties"])


def _expand_penalties(
    processing: LogitsProcessing, places: np.ndarray, sources: np.ndarray, vocab_size: int
) -> dict[str, np.ndarray]:
    """Returns only the history entries that a penalty reads, with those that lack their token first."""
    columns: dict[str, np.ndarray] = {}
    num_history, ids = _int32(processing.num_history), _ids(processing.history_ids, vocab_size)
    penalty_rows = _int32(processing.penalty_rows)
    rows = places[penalty_rows]
    assert len(rows) == len(num_history)
    owners = np.repeat(np.arange(len(rows)), num_history)
    assert len(owners) == len(ids)
    ends = np.cumsum(num_history, dtype=np.int64)
    entry_sources = np.full(len(ids), -1, np.int32)
    entry_sources[ends[num_history > 0] - 1] = sources[penalty_rows][num_history > 0]

    def add_entries(name: str, is_read: np.ndarray, penalties: dict[str, np.ndarray]) -> None:
        entries = np.flatnonzero(is_read)
        lacks_token = entry_sources[entries] >= 0
        if lacks_token.any():
            entries = np.concatenate((entries[lacks_token], entries[~lacks_token]))
            columns[f"{name}_sources"] = entry_sources[entries[: lacks_token.sum()]]
        if len(entries):
            owned = owners[entries]
            columns[f"{name}_rows"], columns[f"{name}_ids"] = rows[owned], ids[entries]
            columns.update({column: values[owned] for column, values in penalties.items()})

    repetition, frequency, presence = (
        np.frombuffer(column, np.float32)
        for column in (processing.repetition_penalties, processing.frequency_penalties, processing.presence_penalties)
    )
    add_entries("repetition", (repetition != 1)[owners], {"repetition_penalties": repetition})
    first_outputs = ends - num_history + _int32(processing.num_history_prompt)
    is_counted = ((frequency != 0) | (presence != 0))[owners] & (np.arange(len(ids)) >= first_outputs[owners])
    add_entries("occurrence", is_counted, {"frequency_penalties": frequency, "presence_penalties": presence})
    return columns


def _int32(column: bytes) -> np.ndarray:
    return np.frombuffer(column, np.int32)


def _ids(column: bytes, vocab_size: int) -> np.ndarray:
    """Returns token ids; an id outside the vocabulary would change another row's logits."""
    ids = _int32(column)
    assert len(ids) == 0 or 0 <= ids.min() <= ids.max() < vocab_size, "a token id outside of the vocabulary"
    return ids
