"""Vectors, logits of classes and logprobs of labels from the hidden states of a step's pooled rows.

A row is summed from its first token to its last, one after another, whatever else is in the step and however its prompt
is cut into chunks, so its bits do not depend on other requests.

Shape legend: Q pooled tokens of the step, N pooled rows, C carried vectors, S summed vectors, M vectors of a group, E
embedding size, D size of a vector, L labels of the row that has the most, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.operations.rms_norm import rms_norm
from messages.columns import pack_int32
from messages.ring.steps import POOLED_KINDS, POOLING_WAYS, PooledColumns, PooledKind, PooledRows
from scheduler_proc.computing.model.decoder import Decoder

SMALLEST_SQUARE = 1e-24
"""A vector whose sum of squares is smaller is not normalized to length 1: it is zero."""


OF_TOKENS = ("token_embed", "labels")
"""Kinds that are computed from the hidden states of tokens, not from a sum."""


class PooledGroup(NamedTuple):
    """Vectors of which the same is computed; `rows` has the pooled row of each, ascending."""

    kind: PooledKind
    dimensions: int
    normalizes: bool
    rows: list[int]


@dataclass(frozen=True)
class PoolingPlan:
    """How the pooled rows of a step become vectors.

    Columns on the device: `pooled_lens` (int64 [N]): how many vectors are summed for each row; `pooled_sources`
    (int64 [S]): which, as indices into the carried vectors followed by the pooled tokens, absent if they are simply all
    tokens; `pooled_carried` (float32 [C * E]); `pooled_weights` (float32 [S]), absent if all are 1; `pooled_divisors`
    (float32 [N]), likewise; `pooled_group_0` … (int64 [M]): the rows of each group, or their tokens (`OF_TOKENS`);
    `pooled_labels` (int64 [M * L]), padded with 0.
    """

    groups: list[PooledGroup]
    num_tokens: list[int]
    """Pooled tokens of each row."""
    num_labels: list[int]
    reduction: Literal["sum", "max"]


def plan_pooling(pooled: PooledRows, columns: dict[str, np.ndarray]) -> PoolingPlan:
    """Returns how to pool the rows, and adds to `columns` what the device needs for it."""
    num_tokens = _read(pooled.num_tokens)
    kinds = [POOLED_KINDS[kind] for kind in _read(pooled.kinds)]
    rows_Q = np.arange(len(kinds)).repeat(num_tokens)
    _plan_sums(pooled, np.array(kinds), rows_Q, columns)
    by_group: dict[tuple[PooledKind, int, bool], list[int]] = {}
    for row, key in enumerate(zip(kinds, _read(pooled.dimensions), _read(pooled.normalizes) > 0, strict=True)):
        by_group.setdefault(key, []).append(row)
    groups: list[PooledGroup] = []
    for index, (key, rows) in enumerate(by_group.items()):
        places = np.flatnonzero(np.isin(rows_Q, rows)) if key[0] in OF_TOKENS else np.array(rows)
        columns[f"pooled_group_{index}"] = places
        groups.append(PooledGroup(*key, rows_Q[places].tolist() if key[0] in OF_TOKENS else rows))
    num_labels = _read(pooled.num_labels)
    if num_labels.any():
        most = num_labels.max()
        label_ids = np.zeros((np.count_nonzero(num_labels), most), np.int64)
        label_ids[np.arange(most) < num_labels[num_labels > 0][:, None]] = np.frombuffer(pooled.label_ids, np.int32)
        columns["pooled_labels"] = label_ids.ravel()
    ways = {POOLING_WAYS[way] for way in _read(pooled.ways)}
    assert "max" not in ways or ways.isdisjoint(("mean", "weighted_mean")), "the model pools in one way"
    return PoolingPlan(groups, num_tokens.tolist(), num_labels.tolist(), "max" if "max" in ways else "sum")


def _plan_sums(pooled: PooledRows, kinds: np.ndarray, rows_Q: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    num_tokens, num_before = _read(pooled.num_tokens), _read(pooled.num_before)
    ways = np.array(POOLING_WAYS)[_read(pooled.ways)]
    carried_rows, summed = np.flatnonzero(_read(pooled.num_carried)), np.flatnonzero((kinds != "token_embed")[rows_Q])
    rows = np.concatenate((carried_rows, rows_Q[summed]))
    order = rows.argsort(kind="stable")  # the carried vector of a row comes before its tokens
    columns["pooled_lens"] = np.bincount(rows, minlength=len(kinds))
    if len(carried_rows) or len(summed) < len(rows_Q):
        columns["pooled_sources"] = np.concatenate((np.arange(len(carried_rows)), len(carried_rows) + summed))[order]
        columns["pooled_carried"] = np.frombuffer(pooled.carried, np.float32)
    is_weighted = ways == "weighted_mean"
    if is_weighted.any():
        starts = num_tokens.cumsum() - num_tokens
        places_Q = (num_before - starts + 1)[rows_Q] + np.arange(len(rows_Q))
        weights_Q = np.where(is_weighted[rows_Q], places_Q, 1)
        weights = np.concatenate((np.ones(len(carried_rows)), weights_Q[summed]))
        columns["pooled_weights"] = weights[order].astype(np.float32)
    totals, is_done = num_before + num_tokens, np.isin(kinds, ("embed", "classify"))
    divisors = np.where(is_weighted, totals * (totals + 1) / 2, np.where(ways == "mean", totals, 1))
    if is_done.any() and (divisors != 1).any():
        columns["pooled_divisors"] = np.where(is_done, divisors, 1).astype(np.float32)


def compute_pooled(
    hidden_QE: Tensor,
    slots_Q: Tensor | None,
    decoder: Decoder,
    plan: PoolingPlan,
    columns: Mapping[str, Tensor],
    max_logits: int,
) -> list[Tensor]:
    """Returns the vectors of each group, float32 [M, D]; `columns` are the plan's, on the device.

    `slots_Q`: see `Forwarded.head_slots`.
    """
    wide_QE = hidden_QE.float()
    sums_NE = _reduce(wide_QE, plan, columns)
    vectors: list[Tensor] = []
    for index, group in enumerate(plan.groups):
        places_M = columns[f"pooled_group_{index}"]
        vectors_ME = (wide_QE if group.kind in OF_TOKENS else sums_NE).index_select(0, places_M)
        match group.kind:
            case "part":
                vectors.append(vectors_ME)
            case "labels":
                hidden_ME, slots_M = hidden_QE[places_M], None if slots_Q is None else slots_Q[places_M]
                labels_ML = columns["pooled_labels"].view(len(hidden_ME), -1)
                vectors.append(_label_logprobs(hidden_ME, slots_M, labels_ML, decoder, max_logits))
            case "classify":
                assert decoder.pooler is not None, "the model has no classification head"
                vectors.append(decoder.pooler.classify(vectors_ME))
            case "embed" | "token_embed":
                vectors.append(_embed(vectors_ME, decoder, group))
    return vectors


def _reduce(wide_QE: Tensor, plan: PoolingPlan, columns: Mapping[str, Tensor]) -> Tensor:
    """Returns the sum, mean or maximum of each row, float32 [N, E]."""
    vectors_SE = wide_QE
    if "pooled_sources" in columns:
        carried_CE = columns["pooled_carried"].view(-1, wide_QE.shape[1])
        vectors_SE = torch.cat((carried_CE, wide_QE)).index_select(0, columns["pooled_sources"])
    if "pooled_weights" in columns:
        vectors_SE = vectors_SE * columns["pooled_weights"][:, None]
    # In a sequence on every device. Without `unsafe`, the host would wait for a GPU to check the lengths.
    sums_NE = torch.segment_reduce(vectors_SE, plan.reduction, lengths=columns["pooled_lens"], axis=0, unsafe=True)
    return sums_NE / columns["pooled_divisors"][:, None] if "pooled_divisors" in columns else sums_NE


def _embed(vectors_ME: Tensor, decoder: Decoder, group: PooledGroup) -> Tensor:
    vectors_MD = vectors_ME if decoder.pooler is None else decoder.pooler.embed(vectors_ME)
    if group.dimensions:
        vectors_MD = vectors_MD[:, : group.dimensions]
    if not group.normalizes:
        return vectors_MD
    size = vectors_MD.shape[1]
    scale_D = vectors_MD.new_full((size,), size**-0.5)
    return rms_norm(vectors_MD.contiguous(), scale_D, SMALLEST_SQUARE / size)


def _label_logprobs(
    hidden_ME: Tensor, slots_M: Tensor | None, labels_ML: Tensor, decoder: Decoder, max_logits: int
) -> Tensor:
    num_rows = max(1, max_logits // decoder.model.vocab_size)
    parts: list[Tensor] = []
    for start in range(0, len(hidden_ME), num_rows):
        part = slice(start, start + num_rows)
        hidden_NE, labels_NL = hidden_ME[part], labels_ML[part]
        logits_NV = decoder.logits(hidden_NE, None, None if slots_M is None else slots_M[part]).float()
        if (exact_NL := decoder.token_logits(hidden_NE, labels_NL)) is not None:
            logits_NV.scatter_(1, labels_NL, exact_NL)
        parts.append(logits_NV.log_softmax(-1).gather(1, labels_NL))
    return torch.cat(parts)


def read_pooled(plan: PoolingPlan, vectors: Sequence[Tensor]) -> PooledColumns:
    """Returns the result of `compute_pooled` as a message, row after row; its tensors must be in host memory."""
    by_row: list[list[bytes]] = [[] for _ in plan.num_tokens]
    for group, vectors_MD in zip(plan.groups, vectors, strict=True):
        for row, vector in zip(group.rows, vectors_MD.numpy(), strict=True):
            by_row[row].append(vector[: plan.num_labels[row] or None].tobytes())
    rows = list(zip(plan.num_tokens, by_row, strict=True))
    sizes = pack_int32(len(vector) // 4 for _, of_row in rows for vector in of_row)
    num_tokens = pack_int32(count // len(of_row) for count, of_row in rows for _ in of_row)
    return PooledColumns(sizes, num_tokens, b"".join(vector for _, of_row in rows for vector in of_row))


def _read(column: bytes) -> np.ndarray:
    return np.frombuffer(column, np.int32)
