"""The Triton kernel of `sample`: draws from scores that filters or logits processing have changed.

Shape legend: S rows, V vocabulary.
"""

from torch import Tensor

from kernels.gpu.best_token import find_best


def sample(scores_SV: Tensor, seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    return find_best(scores_SV, (None, seeds_S, positions_S))
