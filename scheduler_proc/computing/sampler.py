"""Turns logits into next tokens as each row's sampling parameters say.

Shape legend: S rows that sample, N of them not greedy, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.filter_scores import filter_min_p, filter_top
from kernels.sample import NO_TOKEN, greedy, sample
from messages.steps import Batch
from scheduler_proc.computing.logit_edits import edit_logits, find_edited


def choose_tokens(logits_SV: Tensor, batch: Batch) -> Tensor:
    """Returns the next token of each row (int32 [S]), -1 where a logit of the row is not finite.

    A row's token is a function of its logits, its edits, its parameters and (seed, position): not of the other rows.
    Edits are those of `logit_edits`; a row that they leave without a token of finite logit has none, -1. Filters are
    those of transformers in its order: temperature, top-k, top-p, min-p. Rows without one do not pay for it.
    """
    tokens_S = greedy(logits_SV)
    temperatures = np.frombuffer(batch.temperatures, np.float32)
    assert len(temperatures) == len(logits_SV)
    is_drawn, is_edited = temperatures > 0, find_edited(batch.edits, len(logits_SV))
    # Drawn rows come first and edited ones last, so that both are slices of one copy.
    groups = [np.flatnonzero(group) for group in (is_drawn & ~is_edited, is_drawn & is_edited, ~is_drawn & is_edited)]
    rows = np.concatenate(groups)
    if len(rows) == 0:
        return tokens_S.to(torch.int32)
    num_unedited, num_drawn = len(groups[0]), len(groups[0]) + len(groups[1])
    rows_N = torch.from_numpy(rows).to(logits_SV.device)
    scores_NV = logits_SV.index_select(0, rows_N).float()
    chosen_N = tokens_S[rows_N]
    is_possible_N = chosen_N != NO_TOKEN
    if num_unedited < len(rows):
        best = _edit(scores_NV, batch, rows, num_unedited)
        chosen_N[num_unedited:] = best.indices
        is_possible_N[num_unedited:] &= best.values.isfinite()
    if num_drawn:
        chosen_N[:num_drawn] = _draw(scores_NV[:num_drawn], batch, rows[:num_drawn])
    return tokens_S.index_copy_(0, rows_N, chosen_N.where(is_possible_N, NO_TOKEN)).to(torch.int32)


def _edit(scores_NV: Tensor, batch: Batch, rows: np.ndarray, num_unedited: int) -> torch.return_types.max:
    """Applies the edits to the logits of `rows`; returns the best token of each row from `num_unedited` on."""
    assert batch.edits is not None
    places = np.full(len(batch.temperatures) // 4, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    edit_logits(scores_NV, batch.edits, places)
    return scores_NV[num_unedited:].max(dim=-1)


def _draw(scores_NV: Tensor, batch: Batch, rows: np.ndarray) -> Tensor:
    """Returns a token for each of `rows` (int64 [N]), drawn from their logits, which it overwrites."""
    device = scores_NV.device
    scores_NV.div_(_take(batch.temperatures, np.float32, rows, device)[:, None])
    _filter(scores_NV, batch, rows)
    seeds_N, positions_N = (_take(column, np.int64, rows, device) for column in (batch.seeds, batch.sample_positions))
    return sample(scores_NV, seeds_N, positions_N)


def _filter(scores_NV: Tensor, batch: Batch, rows: np.ndarray) -> None:
    """Sets the scores of tokens that the rows' top-k, top-p and min-p take out to -inf."""
    device, vocab_size = scores_NV.device, scores_NV.shape[1]
    top_ks = np.frombuffer(batch.top_ks, np.int32)[rows].astype(np.int64)
    top_ks[top_ks <= 0] = vocab_size
    top_ps = np.frombuffer(batch.top_ps, np.float32)[rows]
    min_ps = np.frombuffer(batch.min_ps, np.float32)[rows]
    filtered = np.flatnonzero((top_ks < vocab_size) | (top_ps < 1))
    if len(filtered):
        scores = scores_NV[filtered]
        filter_top(scores, torch.from_numpy(top_ks[filtered]).to(device), torch.from_numpy(top_ps[filtered]).to(device))
        scores_NV[filtered] = scores
    filtered = np.flatnonzero(min_ps > 0)
    if len(filtered):
        scores = scores_NV[filtered]
        filter_min_p(scores, torch.from_numpy(min_ps[filtered]).to(device))
        scores_NV[filtered] = scores


def _take(column: bytes, dtype: type[np.generic], rows: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(column, dtype)[rows]).to(device)
