"""Rotary position embedding, the half-split form of Hugging Face checkpoints.

Shape legend: T tokens, H query heads, G key/value heads, D head dimension, M positions of the tables, X pairs.
Formula: Su et al., "RoFormer", 2021, section 3.4; element i of a head is paired with element i + X.
"""

import torch
from torch import Tensor

from kernels.arguments.rows import RopeTables


def rope(query_THD: Tensor, key_TGD: Tensor, tables: RopeTables, positions_T: Tensor) -> None:
    """Rotates each head of `query_THD` and `key_TGD` in place by the angles of its position."""
    cos_MX, sin_MX, query_row = tables
    num_rotated = 2 * cos_MX.shape[1]
    assert query_THD.shape[-1] == key_TGD.shape[-1] >= num_rotated
    assert cos_MX.shape == sin_MX.shape
    assert cos_MX.dtype == sin_MX.dtype == torch.float32
    assert len(query_THD) == len(key_TGD) == len(positions_T)
    for heads, first_row in ((query_THD, query_row), (key_TGD, 0)):
        cos_T1X = cos_MX.index_select(0, positions_T + first_row)[:, None]
        sin_T1X = sin_MX.index_select(0, positions_T + first_row)[:, None]
        first, second = heads[..., :num_rotated].float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos_T1X - second * sin_T1X, second * cos_T1X + first * sin_T1X), dim=-1)
        heads[..., :num_rotated] = rotated
