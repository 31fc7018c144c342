"""Restricts some rows to the tokens whose bit is set: those that a grammar allows next.

Shape legend: S rows, V vocabulary, A restricted rows, W words of a bitmask, 32 tokens each.
"""

import torch
from torch import Tensor

from kernels.dispatch import call


def apply_bitmask(logits_SV: Tensor, rows_A: Tensor, bitmask_AW: Tensor) -> None:
    """Sets the logits of all tokens whose bit is 0 to -inf in the rows `rows_A` (int64, each once), in place.

    Bit b of the int32 word w belongs to token 32 * w + b. Logits are float32.
    """
    assert logits_SV.dtype == torch.float32
    assert rows_A.dtype == torch.int64
    assert bitmask_AW.dtype == torch.int32
    assert bitmask_AW.shape == (len(rows_A), -(-logits_SV.shape[1] // 32))
    assert logits_SV.is_contiguous()
    assert bitmask_AW.is_contiguous()
    call("apply_bitmask", logits_SV, apply_bitmask_reference, logits_SV, rows_A, bitmask_AW)


def apply_bitmask_reference(logits_SV: Tensor, rows_A: Tensor, bitmask_AW: Tensor) -> None:
    shifts = torch.arange(32, dtype=torch.int32, device=bitmask_AW.device)
    is_allowed_AV = (bitmask_AW[:, :, None] >> shifts & 1).flatten(1)[:, : logits_SV.shape[1]].bool()
    logits_SV.index_copy_(0, rows_A, logits_SV.index_select(0, rows_A).where(is_allowed_AV, float("-inf")))
