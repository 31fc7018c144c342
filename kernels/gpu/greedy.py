"""The Triton kernel of `greedy`: one read of the logits, many programs a row.

Shape legend: S rows, V vocabulary.
"""

from torch import Tensor

from kernels.gpu.best_token import find_best, part_cases, row_cases
from kernels.gpu.compile_case import in_float32


def greedy(logits_SV: Tensor) -> Tensor:
    return find_best(logits_SV, None)


_CASES = part_cases("bf16", is_drawn=False, has_logits=True)
COMPILE_CASES = (*_CASES, in_float32(_CASES[0]), *row_cases())
