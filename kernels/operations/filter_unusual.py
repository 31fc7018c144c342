"""Filters that few requests use: top-n-sigma, typical-p and XTC, in torch alone on any device.

Shape legend: S rows, V vocabulary. Scores are float32 logits over temperature, -inf for tokens that are already
filtered out; a filter sets more of them to -inf, in place. No filter waits for the device.
"""

from torch import Tensor

from kernels.operations.noise import row_noise
from kernels.operations.row_sums import row_sums

OUT = float("-inf")


def filter_top_n_sigma(scores_SV: Tensor, top_n_sigmas_S: Tensor) -> None:
    """Keeps the tokens within `top_n_sigmas_S` standard deviations of the scores below the best one.

    Tang et al., "Top-nσ: Not All Logits Are You Need", 2024. The choice does not depend on the temperature.
    """
    is_in_SV = scores_SV > OUT
    num_in_S1 = is_in_SV.sum(-1, keepdim=True)
    mean_S1 = row_sums(scores_SV.where(is_in_SV, 0)) / num_in_S1
    variance_S1 = row_sums((scores_SV - mean_S1).where(is_in_SV, 0).square_()) / num_in_S1
    lowest_S1 = scores_SV.amax(-1, keepdim=True) - top_n_sigmas_S[:, None] * variance_S1.sqrt_()
    scores_SV.masked_fill_(scores_SV < lowest_S1, OUT)


def filter_typical_p(scores_SV: Tensor, typical_ps_S: Tensor) -> None:
    """Keeps the fewest tokens nearest to the entropy in information whose probability reaches `typical_ps_S`.

    Meister et al., "Locally Typical Sampling", 2022. Tokens as near as the last one kept are kept too.
    """
    logprobs_SV = scores_SV.log_softmax(-1)
    probs_SV = logprobs_SV.exp()
    entropy_S1 = -row_sums(probs_SV * logprobs_SV.where(probs_SV > 0, 0))
    distances_SV = (logprobs_SV + entropy_S1).abs_()
    nearest_SV, order_SV = distances_SV.sort(-1)
    num_before_S1 = (probs_SV.gather(-1, order_SV).cumsum_(-1) < typical_ps_S[:, None]).sum(-1, keepdim=True)
    farthest_S1 = nearest_SV.gather(-1, num_before_S1.clamp_(max=scores_SV.shape[1] - 1))
    scores_SV.masked_fill_(distances_SV > farthest_S1, OUT)


def filter_xtc(
    scores_SV: Tensor, probabilities_S: Tensor, thresholds_S: Tensor, seeds_S: Tensor, positions_S: Tensor
) -> None:
    """With a probability, removes all tokens at least as likely as a threshold except the least likely of them.

    "Exclude Top Choices" by p-e-w (text-generation-webui, 2024). The chance is a function of seed and position (int64).
    """
    probs_SV = scores_SV.softmax(-1)
    is_top_SV = probs_SV >= thresholds_S[:, None]
    least_S1 = probs_SV.where(is_top_SV, 2.0).amin(-1, keepdim=True)
    is_hit_S1 = (row_noise(seeds_S, positions_S) <= probabilities_S)[:, None]
    scores_SV.masked_fill_(is_top_SV & (probs_SV > least_S1) & is_hit_S1, OUT)
