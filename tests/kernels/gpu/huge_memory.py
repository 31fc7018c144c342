"""Tensors of more than 2^31 elements."""

import mmap
import tempfile

import torch
from torch import Tensor


def make_huge(num_slots: int, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Returns zeros; on a CPU only what is touched takes memory."""
    if device != "cpu":
        return torch.zeros(num_slots, *shape, dtype=dtype, device=device)
    num_bytes = num_slots * dtype.itemsize
    for size in shape:
        num_bytes *= size
    # A file of holes, for memory that may not be there would not be promised.
    with tempfile.TemporaryFile() as file:
        file.truncate(num_bytes)
        return torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=dtype).view(num_slots, *shape)
