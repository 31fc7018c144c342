"""Memory for tensors that are read from end to end again and again, in huge pages if Linux has them.

Otherwise a core that streams weights or K and V meets a new page every 4 KB. Each costs a walk through the page tables,
or through two of them in a virtual machine.
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
    """A stretch of memory that tensors are cut from, one after another; it is freed with the last of them.

    With a `descriptor` it is that file's memory, of `num_bytes`, shared with other processes that map the file; it must
    not be written to if `is_read_only`. Raises `OSError`.
    """

    def __init__(self, num_bytes: int, descriptor: int | None = None, is_read_only: bool = False):
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._begin = -self._bytes.data_ptr() % HUGE_PAGE
        self._end = self._begin + num_bytes
        self.num_taken_bytes = 0
        if descriptor is not None:
            map_file(self._bytes.data_ptr() + self._begin, num_bytes, descriptor, is_read_only=is_read_only)
        with contextlib.suppress(AttributeError, OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Returns a contiguous, uninitialised CPU tensor, or `None` if there is no room left."""
        tensor = self.at(self.num_taken_bytes, shape, dtype)
        if tensor is not None:
            self.num_taken_bytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return tensor

    def at(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Returns the tensor at this offset in bytes, or `None` if it would end outside."""
        begin, num_bytes = self._begin + offset, math.prod(shape) * dtype.itemsize
        if begin + num_bytes > self._end:
            return None
        return self._bytes[begin : begin + num_bytes].view(dtype).view(*shape)

    def find(self, tensor: Tensor) -> int | None:
        """Returns the offset in bytes of a tensor of this chunk, or `None` for any other tensor."""
        offset = tensor.data_ptr() - self._bytes.data_ptr() - self._begin
        return offset if 0 <= offset < self.num_taken_bytes else None


class _Cut(threading.local):
    """The chunk that the calling thread cuts from: two threads must not get the same memory."""

    chunk: Chunk | None = None


_cut = _Cut()


@contextlib.contextmanager
def allocate_from(chunk: Chunk) -> Iterator[None]:
    """Makes `empty_huge` take memory from `chunk` inside the block, as long as it has room."""
    before, _cut.chunk = _cut.chunk, chunk
    try:
        yield
    finally:
        _cut.chunk = before


def empty_huge(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns a contiguous, uninitialised CPU tensor; it takes memory as it is written to.

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
