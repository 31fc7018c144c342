"""Sums of rows that do not depend on the other rows.

Shape legend: N rows, V vocabulary.
"""

import torch
from torch import Tensor

SUMMED_AT_ONCE = 1 << 14
"""Torch divides a single row that is much longer among the threads: the sum's bits would depend on their number."""


def row_sums(values_NV: Tensor) -> Tensor:
    """Returns [N, 1], on a CPU with the same bits for a row alone and in any batch, with any number of threads."""
    parts = [part_NP.sum(-1, keepdim=True) for part_NP in values_NV.split(SUMMED_AT_ONCE, dim=-1)]
    return torch.cat(parts, dim=-1).sum(-1, keepdim=True)
