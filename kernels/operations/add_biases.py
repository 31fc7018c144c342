"""Adds biases to some logits.

Shape legend: S rows, V vocabulary, N biases of all rows.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.pair_sums import find_places, sum_equals


def add_biases(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, values_N: Tensor) -> None:
    """Adds `values_N` (float32, -inf bans) to the logits of `ids_N` in rows `rows_N` (int64), in place.

    Several biases of one token in a row are summed first, whatever their order. Logits are float32.
    """
    assert values_N.dtype == torch.float32
    call("add_biases", logits_SV, add_biases_reference, logits_SV, rows_N, ids_N, values_N)


def add_biases_reference(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, values_N: Tensor) -> None:
    flat, places_N = find_places(logits_SV, rows_N, ids_N)
    # All entries of a token write the same value, so their order does not matter.
    flat.scatter_(0, places_N, flat[places_N] + sum_equals(places_N, values_N).float())
