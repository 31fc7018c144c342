"""Entries that name (row, token) pairs, in any order and possibly more than once: their places and sums.

Shape legend: S rows, V vocabulary, N entries.
"""

import torch
from torch import Tensor


def find_places(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the logits as one dimension (a view) and the index in it of each pair (int64 [N])."""
    assert logits_SV.dtype == torch.float32
    assert rows_N.dtype == torch.int64
    assert len(rows_N) == len(ids_N)
    return logits_SV.view(-1), rows_N * logits_SV.shape[1] + ids_N


def sum_equals(places_N: Tensor, values_N: Tensor) -> Tensor:
    """Returns, per entry, the sum of the values of all entries with the same place, float64 [N].

    Sums of a few float32 values are exact in float64 except for extremes, so the order of the entries does not matter.
    """
    sorted_N, order_N = places_N.sort()
    is_first_N = torch.ones_like(sorted_N, dtype=torch.bool)
    torch.ne(sorted_N[1:], sorted_N[:-1], out=is_first_N[1:])
    groups_N = torch.empty_like(order_N)
    groups_N[order_N] = is_first_N.cumsum(0) - 1
    sums_N = torch.zeros_like(values_N, dtype=torch.float64)
    return sums_N.scatter_add_(0, groups_N, values_N.double())[groups_N]
