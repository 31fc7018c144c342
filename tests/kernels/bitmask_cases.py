"""Bitmasks, as grammars give them."""

import numpy as np
import torch
from torch import Tensor


def make_bitmask(is_allowed_AV: Tensor) -> Tensor:
    """Returns the words (int32 [A, W]) of booleans [A, V]."""
    num_rows, vocab_size = is_allowed_AV.shape
    padded = np.zeros((num_rows, -(-vocab_size // 32) * 32), dtype=bool)
    padded[:, :vocab_size] = is_allowed_AV.numpy()
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))
