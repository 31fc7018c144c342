"""Chooses one token per row from its logits.

Shape legend: S rows, V vocabulary.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.noise import exponential_noise

NO_TOKEN = -1


def greedy(logits_SV: Tensor) -> Tensor:
    """Returns the most likely token of each row (the first of equals), -1 if a logit is not finite.

    Tokens are int64, or int32 from the Triton kernel.
    """
    assert logits_SV.dim() == 2
    return call("greedy", logits_SV, greedy_reference, logits_SV)


def greedy_reference(logits_SV: Tensor) -> Tensor:
    tokens_S = logits_SV.max(dim=-1).indices
    # A sum is infinite or NaN as soon as one term is; it reads the logits several times faster than isfinite().all().
    is_finite_S = logits_SV.sum(-1, dtype=torch.float32).isfinite()
    return tokens_S.masked_fill_(~is_finite_S, NO_TOKEN)


def sample(scores_SV: Tensor, seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """Returns a token of each row, drawn with probability softmax(scores); may overwrite `scores_SV`.

    `scores_SV` (float32) are logits over temperature, -inf for filtered tokens; each row has a finite one.
    The draw is a function of the row's scores, its seed and the token's position (both int64). Tokens have the dtype of
    `greedy`.
    """
    assert scores_SV.dtype == torch.float32
    assert seeds_S.dtype == positions_S.dtype == torch.int64
    assert len(scores_SV) == len(seeds_S) == len(positions_S)
    return call("sample", scores_SV, sample_reference, scores_SV, seeds_S, positions_S)


def sample_reference(scores_SV: Tensor, seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """The Gumbel-max trick: minus the logarithm of an exponential draw is a Gumbel draw (Maddison et al., 2014)."""
    noise_SV = exponential_noise(seeds_S, positions_S, scores_SV.shape[1])
    return scores_SV.sub_(noise_SV.log_()).max(dim=-1).indices


def draw(logits_SV: Tensor, temperatures_S: Tensor, seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """Returns a token of each row: drawn with probability softmax(logits / temperature), or, at temperature 0
    (float32), the most likely one; -1 if a logit of the row is not finite.

    It does `greedy` and `sample` in one read of the logits; seeds and positions are those of `sample`.
    """
    assert logits_SV.dim() == 2
    assert temperatures_S.dtype == torch.float32
    assert seeds_S.dtype == positions_S.dtype == torch.int64
    assert len(logits_SV) == len(temperatures_S) == len(seeds_S) == len(positions_S)
    return call("draw", logits_SV, draw_reference, logits_SV, temperatures_S, seeds_S, positions_S)


def draw_reference(logits_SV: Tensor, temperatures_S: Tensor, seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """Only draws the rows that are not greedy, which is most of the work; finding them waits for the device."""
    tokens_S = greedy(logits_SV)
    rows_N = temperatures_S.nonzero()[:, 0]
    scores_NV = logits_SV.index_select(0, rows_N).float().div_(temperatures_S[rows_N][:, None])
    drawn_N = sample(scores_NV, seeds_S[rows_N], positions_S[rows_N])
    return tokens_S.index_copy_(0, rows_N, drawn_N.where(tokens_S[rows_N] != NO_TOKEN, NO_TOKEN))
