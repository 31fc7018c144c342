"""Memory for what is read from end to end again and again: in huge pages, where Linux has them.

A core that streams weights or K and V meets a new page every 4 KB otherwise, and each costs it a walk through the page
tables; in a virtual machine, through two.
"""

import contextlib
import math
import mmap
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.cpu.huge_memory import HUGE_PAGE, map_file

CHUNK_BYTES, ALIGNMENT = 32 << 20, 64


class Chunk:
    """A stretch of memory that tensors are cut from, one after another; it is given back when the last one is gone.

    With a `descriptor` it is that file's, of `num_bytes`, and others that map it see the same; not to be written to, if
    `is_read_only`. Raises `OSError`.
    """

    def __init__(self, num_bytes: int, descriptor: int | None = None, is_read_only: bool = False):
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._begin = -self._bytes.data_ptr() % HUGE_PAGE
        self._end = self._begin + num_bytes
        self.num_taken_bytes = 0
        if descriptor is not None:
            map_file(self._bytes.data_ptr() + self._begin, num_bytes, descriptor, is_read_only=is_read_only)
        with contextlib.suppress(AttributeError, OSError):  # a system without them: the memory is as good as any
            memory.madvise(mmap.MADV_HUGEPAGE)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Returns a tensor on the CPU, contiguous, that holds zeros or anything; None where there is no room left."""
        tensor = self.at(self.num_taken_bytes, shape, dtype)
        if tensor is not None:
            self.num_taken_bytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return tensor

    def at(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Returns the tensor that begins there, in bytes; None where it would end outside."""
        begin, num_bytes = self._begin + offset, math.prod(shape) * dtype.itemsize
        if begin + num_bytes > self._end:
            return None
        return self._bytes[begin : begin + num_bytes].view(dtype).view(*shape)

    def find(self, tensor: Tensor) -> int | None:
        """Returns where a tensor begins that was taken of it, in bytes; None for any other."""
        offset = tensor.data_ptr() - self._bytes.data_ptr() - self._begin
        return offset if 0 <= offset < self.num_taken_bytes else None


class _Cut(threading.local):
    """The chunk that the calling thread cuts from at present: two threads must not be given the same memory."""

    chunk: Chunk | None = None


_cut = _Cut()


@contextlib.contextmanager
def allocate_from(chunk: Chunk) -> Iterator[None]:
    """Inside the block `empty_huge` takes of `chunk`, as long as that has room."""
    before, _cut.chunk = _cut.chunk, chunk
    try:
        yield
    finally:
        _cut.chunk = before


def empty_huge(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns a tensor on the CPU, contiguous, that holds zeros or anything; it takes memory as it is written to.

    Small tensors share pages with their neighbours: this is for what lives as long as the model.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    taken = None if _cut.chunk is None else _cut.chunk.take(shape, dtype)
    if taken is None:
        chunk = Chunk(max(CHUNK_BYTES, num_bytes))
        taken = chunk.take(shape, dtype)
        assert taken is not None
        if num_bytes < CHUNK_BYTES:
            _cut.chunk = chunk
    return taken
