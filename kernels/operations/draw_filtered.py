"""Draws a token for each of some rows from the logits that top-k, top-p and min-p keep.

Shape legend: S rows, N some of them, V vocabulary.
"""

import torch
from torch import Tensor

from kernels.arguments.rows import RowDraws
from kernels.dispatch import call
from kernels.operations.filter_scores import filter_min_p, filter_top
from kernels.operations.sample import NO_TOKEN, greedy, sample


def draw_filtered(logits_SV: Tensor, rows_N: Tensor, draws: RowDraws) -> Tensor:
    """Returns a token (int32) for each row in `rows_N` (int64), -1 if one of its logits is not finite.

    It is drawn with probability softmax(logits / temperature) from the tokens that the filters keep.
    """
    assert logits_SV.dim() == 2
    assert rows_N.dtype == torch.int64
    assert all(len(column) == len(rows_N) for column in draws)
    return call("draw_filtered", logits_SV, draw_filtered_reference, logits_SV, rows_N, draws)


def draw_filtered_reference(logits_SV: Tensor, rows_N: Tensor, draws: RowDraws) -> Tensor:
    """Copies the rows and reads the copies once per operation."""
    logits_NV = logits_SV.index_select(0, rows_N)
    is_possible_N = greedy(logits_NV) != NO_TOKEN
    scores_NV = logits_NV.float().div_(draws.temperatures[:, None])
    filter_top(scores_NV, draws.top_ks, draws.top_ps)
    filter_min_p(scores_NV, draws.min_ps)
    return sample(scores_NV, draws.seeds, draws.positions).where(is_possible_N, NO_TOKEN).to(torch.int32)
