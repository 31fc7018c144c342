"""Writes the K and V of a step's tokens into the paged cache.

Shape legend: T tokens, G key/value heads, D head dimension.
"""

import torch
from torch import Tensor

from kernels.paged_kv import PagedKV


def store_kv(key_TGD: Tensor, value_TGD: Tensor, cache: PagedKV, slots_T: Tensor) -> None:
    """The cache holds the K and V of token t in slot `slots_T[t]` (int64, no slot twice; -1: the token is skipped)."""
    assert slots_T.dtype == torch.int64
    assert key_TGD.shape == value_TGD.shape == (len(slots_T), cache.num_heads, cache.head_dim)
    assert key_TGD.dtype == value_TGD.dtype == cache.keys.dtype
    store_kv_reference(key_TGD, value_TGD, cache, slots_T)


def store_kv_reference(key_TGD: Tensor, value_TGD: Tensor, cache: PagedKV, slots_T: Tensor) -> None:
    is_kept_T = slots_T >= 0
    if not bool(is_kept_T.all()):
        key_TGD, value_TGD, slots_T = key_TGD[is_kept_T], value_TGD[is_kept_T], slots_T[is_kept_T]
    cache.keys.index_copy_(0, slots_T, key_TGD)
    cache.values.index_copy_(0, slots_T, value_TGD)
