"""Rotary position embedding, the half-split form of Hugging Face checkpoints.

Shape legend: T tokens, H query heads, G key/value heads, D head dimension, M positions of the tables, X = D / 2.
Formula: Su et al., "RoFormer", 2021, section 3.4; element i of a head is paired with element i + X.
"""

import torch
from torch import Tensor


def rope(query_THD: Tensor, key_TGD: Tensor, cos_MX: Tensor, sin_MX: Tensor, positions_T: Tensor) -> None:
    """Rotates each head of `query_THD` and `key_TGD` in place by the angles (float32 tables) of its position."""
    half = query_THD.shape[-1] // 2
    assert query_THD.shape[-1] == key_TGD.shape[-1] == 2 * half
    assert cos_MX.shape == sin_MX.shape
    assert cos_MX.shape[1] == half
    assert cos_MX.dtype == sin_MX.dtype == torch.float32
    assert len(query_THD) == len(key_TGD) == len(positions_T)
    cos_T1X = cos_MX.index_select(0, positions_T)[:, None]
    sin_T1X = sin_MX.index_select(0, positions_T)[:, None]
    for heads in (query_THD, key_TGD):
        first, second = heads.float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos_T1X - second * sin_T1X, second * cos_T1X + first * sin_T1X), dim=-1)
        heads.copy_(rotated)
