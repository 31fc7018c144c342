"""The frequency and presence penalties on output tokens, as OpenAI's API defines them.

Shape legend: S rows, V vocabulary, N output tokens of all rows.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.pair_sums import find_places, sum_equals


def penalize_occurrence(
    logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, frequency_N: Tensor, presence_N: Tensor
) -> None:
    """Subtracts `frequency_N` times a token's number of occurrences, and `presence_N`, from its logit, in place.

    An occurrence is an entry of `ids_N` in row `rows_N` (int64); both penalties (float32) are the same for all entries
    of a row. Logits are float32.
    """
    assert frequency_N.dtype == presence_N.dtype == torch.float32
    assert len(frequency_N) == len(presence_N) == len(ids_N)
    arguments = logits_SV, rows_N, ids_N, frequency_N, presence_N
    call("penalize_occurrence", logits_SV, penalize_occurrence_reference, *arguments)


def penalize_occurrence_reference(
    logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, frequency_N: Tensor, presence_N: Tensor
) -> None:
    flat, places_N = find_places(logits_SV, rows_N, ids_N)
    counts_N = sum_equals(places_N, torch.ones_like(frequency_N)).float()
    flat.scatter_(0, places_N, flat[places_N] - counts_N * frequency_N - presence_N)
