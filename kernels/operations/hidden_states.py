"""Final hidden states of a model's tokens, kept in slots as K and V are: a head of multi-token prediction reads them.

Shape legend: T tokens, E embedding size, S slots, J = 2 E joined values.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.rms_norm import rms_norm_reference


def store_hidden(hidden_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    """Stores the state of token t in slot `slots_T[t]` (int64, no slot twice; -1 skips the token)."""
    _check(hidden_TE, slots_T, kept_SE)
    call("store_hidden", hidden_TE, store_hidden_reference, hidden_TE, slots_T, kept_SE)


def store_hidden_reference(hidden_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    is_kept_T = slots_T >= 0
    kept_SE[slots_T[is_kept_T]] = hidden_TE[is_kept_T]


def join_hidden(
    embedded_TE: Tensor, kept_SE: Tensor, slots_T: Tensor, weights: tuple[Tensor, Tensor], eps: float
) -> Tensor:
    """Returns each token's embedding, then the state in its slot, both after an RMS norm with its own weight: [T, J].

    Slot -1 gives any finite values.
    """
    _check(embedded_TE, slots_T, kept_SE)
    assert all(weight_E.shape == kept_SE.shape[1:] for weight_E in weights)
    return call("join_hidden", embedded_TE, join_hidden_reference, embedded_TE, kept_SE, slots_T, weights, eps)


def join_hidden_reference(
    embedded_TE: Tensor, kept_SE: Tensor, slots_T: Tensor, weights: tuple[Tensor, Tensor], eps: float
) -> Tensor:
    parts = zip((embedded_TE, kept_SE[slots_T.clamp(min=0)]), weights, strict=True)
    return torch.cat([rms_norm_reference(part_TE, weight_E, eps, None) for part_TE, weight_E in parts], dim=1)


def _check(x_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    assert slots_T.dtype == torch.int64
    assert x_TE.dtype == kept_SE.dtype
    assert x_TE.shape == (len(slots_T), kept_SE.shape[1])
    assert x_TE.is_contiguous()
    assert kept_SE.is_contiguous()
