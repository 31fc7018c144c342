"""Memory for what is read from end to end again and again: in huge pages, where Linux has them.

A core that streams weights or K and V meets a new page every 4 KB otherwise, and each costs it a walk through the page
tables; in a virtual machine, through two.
"""

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

HUGE_PAGE, CHUNK_BYTES, ALIGNMENT = 2 << 20, 32 << 20, 64


class Chunk:
    """A stretch of memory that tensors are cut from, one after another; it is given back when the last one is gone."""

    def __init__(self, num_bytes: int):
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError):  # a system without them: the memory is as good as any
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._next = -self._bytes.data_ptr() % HUGE_PAGE

    def take(self, num_bytes: int) -> Tensor | None:
        """Returns that many bytes; None where they are not left."""
        begin = self._next
        if begin + num_bytes > len(self._bytes):
            return None
        self._next += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return self._bytes[begin : begin + num_bytes]


_chunks: list[Chunk] = []
"""The one that is cut from at present, if any."""


def empty_huge(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns a tensor on the CPU, contiguous, that holds zeros or anything; it takes memory as it is written to.

    Small tensors share pages with their neighbours: this is for what lives as long as the model.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    taken = _chunks[-1].take(num_bytes) if _chunks else None
    if taken is None:
        chunk = Chunk(max(CHUNK_BYTES, num_bytes))
        taken = chunk.take(num_bytes)
        assert taken is not None
        if num_bytes < CHUNK_BYTES:
            _chunks[:] = [chunk]
    return taken.view(dtype).view(*shape)
