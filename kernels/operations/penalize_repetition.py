"""The repetition penalty on tokens that occurred (Keskar et al., "CTRL", 2019, section 4.1, as in transformers).

Shape legend: S rows, V vocabulary, N tokens that occurred in all rows.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.pair_sums import find_places


def penalize_repetition(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, penalties_N: Tensor) -> None:
    """Divides positive logits of `ids_N` in rows `rows_N` (int64) by the penalty, multiplies others by it, in place.

    A token that occurs in several entries of a row is penalized once; `penalties_N` (float32, > 0) is the same for all
    entries of a row. Logits are float32.
    """
    assert penalties_N.dtype == torch.float32
    assert len(penalties_N) == len(ids_N)
    call("penalize_repetition", logits_SV, penalize_repetition_reference, logits_SV, rows_N, ids_N, penalties_N)


def penalize_repetition_reference(logits_SV: Tensor, rows_N: Tensor, ids_N: Tensor, penalties_N: Tensor) -> None:
    flat, places_N = find_places(logits_SV, rows_N, ids_N)
    before_N = flat[places_N]
    # All logits are read before the first one is written; entries of one token write the same value.
    flat.scatter_(0, places_N, torch.where(before_N > 0, before_N / penalties_N, before_N * penalties_N))
