"""Writes the K and V of a step's tokens into the paged cache.

Shape legend: T tokens, G key/value heads, D head dimension.
"""

import torch
from torch import Tensor

from kernels.arguments.paged_kv import MAX_FLOAT16, PagedKV
from kernels.operations.quantized_kv import quantize_heads


def store_kv(key_TGD: Tensor, value_TGD: Tensor, cache: PagedKV, slots_T: Tensor) -> None:
    """Stores the K and V of token t in slot `slots_T[t]` (int64, no slot twice; -1 skips the token)."""
    assert slots_T.dtype == torch.int64
    assert key_TGD.shape == value_TGD.shape == (len(slots_T), cache.num_heads, cache.head_dim)
    assert key_TGD.dtype == value_TGD.dtype
    assert cache.holds(key_TGD.dtype)
    is_kept_T = slots_T >= 0
    if not bool(is_kept_T.all()):
        key_TGD, value_TGD, slots_T = key_TGD[is_kept_T], value_TGD[is_kept_T], slots_T[is_kept_T]
    for new_TGD, values, scales in (
        (key_TGD, cache.keys, cache.key_scales),
        (value_TGD, cache.values, cache.value_scales),
    ):
        if scales is None:
            values.index_copy_(0, slots_T, _narrow(new_TGD, values.dtype))
        else:
            code_TGD, scale_TG = quantize_heads(new_TGD, values.dtype)
            scales.index_copy_(0, slots_T, scale_TG)
            # As bytes: torch does not scatter every 8-bit format.
            values.view(torch.uint8).index_copy_(0, slots_T, code_TGD.view(torch.uint8))


def _narrow(x_TGD: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns float32 as float16 if that is `dtype`; all else is stored as it is."""
    if x_TGD.dtype == dtype:
        return x_TGD
    return torch.where(x_TGD.isfinite(), x_TGD.clamp(-MAX_FLOAT16, MAX_FLOAT16), x_TGD).to(dtype)
