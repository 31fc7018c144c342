"""Final hidden states of a model's tokens, kept in slots as K and V are: a head of multi-token prediction reads them.

Shape legend: T tokens, E embedding size, S slots, J = 2 E joined values.
"""

import torch
from torch import Tensor

from kernels.dispatch import call
from kernels.operations.rms_norm import rms_norm_reference


def store_hidden(hidden_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    """Stores the state of token t in slot `slots_T[t]` (int64, no slot twice; -1 skips the token)."""
    assert slots_T.dtype == torch.int64
    assert hidden_TE.dtype == kept_SE.dtype
    assert hidden_TE.shape == (len(slots_T), kept_SE.shape[1])
    assert hidden_TE.is_contiguous()
    assert kept_SE.is_contiguous()
    call("store_hidden", hidden_TE, store_hidden_reference, hidden_TE, slots_T, kept_SE)


def store_hidden_reference(hidden_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    is_kept_T = slots_T >= 0
    kept_SE[slots_T[is_kept_T]] = hidden_TE[is_kept_T]


def join_hidden(
    embedded_TE: Tensor,
    kept_SE: Tensor,
    slots_T: Tensor,
    embedding_weight_E: Tensor,
    hidden_weight_E: Tensor,
    eps: float,
) -> Tensor:
    """Returns each token's embedding, then the state in its slot, both after an RMS norm of their own: [T, J].

    Slot -1 gives any finite values.
    """
    assert slots_T.dtype == torch.int64
    assert embedded_TE.dtype == kept_SE.dtype
    assert embedded_TE.shape == (len(slots_T), kept_SE.shape[1])
    assert embedded_TE.is_contiguous()
    assert kept_SE.is_contiguous()
    weights = embedding_weight_E, hidden_weight_E
    return call("join_hidden", embedded_TE, join_hidden_reference, embedded_TE, kept_SE, slots_T, *weights, eps)


def join_hidden_reference(
    embedded_TE: Tensor,
    kept_SE: Tensor,
    slots_T: Tensor,
    embedding_weight_E: Tensor,
    hidden_weight_E: Tensor,
    eps: float,
) -> Tensor:
    hidden_TE = rms_norm_reference(kept_SE[slots_T.clamp(min=0)], hidden_weight_E, eps, None)
    return torch.cat((rms_norm_reference(embedded_TE, embedding_weight_E, eps, None), hidden_TE), dim=1)
