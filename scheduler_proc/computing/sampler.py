"""Turns logits into next tokens as each row's sampling parameters say.

Shape legend: S rows that sample, N of them not greedy, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.filter_scores import filter_min_p, filter_top
from kernels.sample import NO_TOKEN, greedy, sample
from messages.steps import Batch


def choose_tokens(logits_SV: Tensor, batch: Batch) -> Tensor:
    """Returns the next token of each row (int32 [S]), -1 where a logit of the row is not finite.

    A row's token is a function of its logits, its parameters and (seed, position): not of the other rows. Filters are
    those of transformers in its order: temperature, top-k, top-p, min-p. Rows without one do not pay for it.
    """
    tokens_S = greedy(logits_SV)
    temperatures = np.frombuffer(batch.temperatures, np.float32)
    assert len(temperatures) == len(logits_SV)
    rows = np.flatnonzero(temperatures > 0)
    if len(rows) == 0:
        return tokens_S.to(torch.int32)
    device = logits_SV.device
    rows_N = torch.from_numpy(rows).to(device)
    scores_NV = logits_SV.index_select(0, rows_N).float()
    scores_NV.div_(_take(batch.temperatures, np.float32, rows, device)[:, None])
    _filter(scores_NV, batch, rows)
    drawn_N = sample(
        scores_NV, _take(batch.seeds, np.int64, rows, device), _take(batch.sample_positions, np.int64, rows, device)
    )
    is_finite_N = tokens_S[rows_N] != NO_TOKEN
    return tokens_S.index_copy_(0, rows_N, drawn_N.where(is_finite_N, NO_TOKEN)).to(torch.int32)


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
