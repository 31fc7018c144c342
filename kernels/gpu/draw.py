"""The Triton kernel of `draw`: greedy rows and rows with a temperature together, in one read of the logits.

Shape legend: S rows, V vocabulary.
"""

from torch import Tensor

from kernels.gpu.best_token import find_best


def draw(logits_SV: Tensor, temperatures_S: Tensor, seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    return find_best(logits_SV, (temperatures_S, seeds_S, positions_S))
