"""Restricts some rows to a set of allowed tokens.

Shape legend: S rows, V vocabulary, A restricted rows, N allowed tokens of all of them.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.pair_sums import find_places


def allow_tokens(logits_SV: Tensor, rows_A: Tensor, entry_rows_N: Tensor, ids_N: Tensor) -> None:
    """Sets the logits of all tokens except the allowed ones to -inf in the rows `rows_A` (int64).

    `ids_N` is allowed in row `entry_rows_N` (int64, values of `rows_A`); a pair may occur twice. Logits are float32.
    """
    assert rows_A.dtype == torch.int64
    call("allow_tokens", logits_SV, allow_tokens_reference, logits_SV, rows_A, entry_rows_N, ids_N)


def allow_tokens_reference(logits_SV: Tensor, rows_A: Tensor, entry_rows_N: Tensor, ids_N: Tensor) -> None:
    flat, places_N = find_places(logits_SV, entry_rows_N, ids_N)
    kept_N = flat[places_N]
    logits_SV.index_fill_(0, rows_A, float("-inf"))
    flat.scatter_(0, places_N, kept_N)
