"""The Triton kernel of `greedy`: one read of the logits, many programs a row.

Shape legend: S rows, V vocabulary.
"""

from torch import Tensor

from kernels.gpu.best_token import find_best


def greedy(logits_SV: Tensor) -> Tensor:
    return find_best(logits_SV, None)
