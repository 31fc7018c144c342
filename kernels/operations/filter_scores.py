"""Filters out unlikely tokens: top-k, then top-p, then min-p, in the order of transformers.

Shape legend: S rows, V vocabulary, K candidates, most likely first.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.row_sums import row_sums

FIRST_CANDIDATES = 1024
"""Most nuclei are smaller; finding the 1,024 best is 8 times faster than sorting a vocabulary of 50,000."""


def filter_top(scores_SV: Tensor, top_ks_S: Tensor, top_ps_S: Tensor) -> None:
    """Sets tokens beyond the best `top_ks_S[s]` (at least 1), then beyond the nucleus of `top_ps_S[s]`, to -inf.

    The nucleus is the smallest set of most likely tokens whose probability reaches top-p; 1 keeps all tokens. Tokens
    that equal the last one kept are kept too, so the result does not depend on the order of equals. `top_ks_S` is
    int64, scores and `top_ps_S` are float32.
    """
    assert scores_SV.dtype == top_ps_S.dtype == torch.float32
    assert top_ks_S.dtype == torch.int64
    assert len(scores_SV) == len(top_ks_S) == len(top_ps_S)
    call("filter_top", scores_SV, filter_top_reference, scores_SV, top_ks_S, top_ps_S)


def filter_top_reference(scores_SV: Tensor, top_ks_S: Tensor, top_ps_S: Tensor) -> None:
    vocab_size = scores_SV.shape[1]
    top_ks_S1 = top_ks_S.clamp(max=vocab_size)[:, None]
    top_ps_S1 = top_ps_S[:, None].where(top_ps_S[:, None] < 1, float("inf"))
    largest_top_k = int(top_ks_S.where(top_ks_S < vocab_size, 1).max())
    for num_candidates in (min(max(FIRST_CANDIDATES, largest_top_k), vocab_size), vocab_size):
        best_SK = scores_SV.topk(num_candidates).values
        ranks_K = torch.arange(num_candidates, device=scores_SV.device)
        best_SK.masked_fill_(ranks_K >= top_ks_S1, float("-inf"))
        # Top-p counts within the tokens that top-k keeps; without a top-k that is the whole vocabulary. Running sums do
        # not depend on the number of candidates, which follows from all rows.
        weights_SK = (best_SK - best_SK[:, :1]).exp_()
        mass_SK = weights_SK.cumsum(-1)
        whole_S1 = row_sums((scores_SV - best_SK[:, :1]).exp_())
        kept_mass_S1 = top_ps_S1 * torch.where(top_ks_S1 < vocab_size, mass_SK[:, -1:], whole_S1)
        is_kept_SK = (mass_SK - weights_SK < kept_mass_S1) & (ranks_K < top_ks_S1)
        if num_candidates == vocab_size or not bool(is_kept_SK[:, -1].any()):
            break
    # A row that is not finite keeps nothing here: the caller refuses its token, but not its neighbours'.
    last_kept_S1 = best_SK.gather(1, (is_kept_SK.sum(-1, keepdim=True) - 1).clamp_(min=0))
    scores_SV.masked_fill_(scores_SV < last_kept_S1, float("-inf"))


def filter_min_p(scores_SV: Tensor, min_ps_S: Tensor) -> None:
    """Sets tokens less likely than `min_ps_S[s]` (in [0, 1], float32) times the most likely one to -inf."""
    assert scores_SV.dtype == min_ps_S.dtype == torch.float32
    assert len(scores_SV) == len(min_ps_S)
    call("filter_min_p", scores_SV, filter_min_p_reference, scores_SV, min_ps_S)


def filter_min_p_reference(scores_SV: Tensor, min_ps_S: Tensor) -> None:
    threshold_S1 = scores_SV.amax(-1, keepdim=True) + min_ps_S[:, None].log()
    scores_SV.masked_fill_(scores_SV < threshold_S1, float("-inf"))
